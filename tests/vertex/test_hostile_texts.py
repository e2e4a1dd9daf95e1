"""Texts that readers of YAML take for something else: what gcloud's own code reads is what was given."""

from __future__ import annotations

import random
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from command_line import command
from gcloud_reader_process import read_by_gcloud

from gpu_pipelines.errors import UserError
from gpu_pipelines.migration import migrate
from gpu_pipelines.migration.gcloud_flags import parse_command
from gpu_pipelines.migration.job_file import read_job
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.options import CloudOptions
from gpu_pipelines.targets.vertex.jobs.config import config_text, job_document
from gpu_pipelines.targets.vertex.jobs.file import prepare_job
from gpu_pipelines.targets.vertex.options import JobFlags

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
IMAGE = "us-docker.pkg.dev/p/r/trainer:1"
#: Numbers, truths, nulls, times, merge keys and marks of YAML 1.1 and 1.2, and what shells and templates look for.
WORDS = r"""
1e-4 5e-5 1.5e3 12e03 1E5 .5 5. -.inf .NaN +1 -0 0e0 nan inf Infinity 010 08 0o17 0x1F 0b1 1_000 1__0 1_ 3 0 1,0 2.10
1:30 -1:20 1:30.5 190:20:30 2024-01-01 2024-01-01T00:00:00Z y n Y N yes No ON off true False tRue null Null NULL none
<< = --- ... - -- ? : ~ [] {} [1,2] a: :a #a &a *a !a %a @a `a | > [a a] {a a} a,b ' '' " "a it's \ \n a\ \x41 * ?x ~a
$A ${A} $(date) `date` a&&b a|b ^~^ --lr --lr=1e-4 -n -y --no %YAML é 日本語 e5 _1 x:y 3.7 1.2.3 gs://b/c /a/b %s
"""
TEXTS = [
    *WORDS.split(),
    *("", " ", "  y ", "\t", "a\tb", "a\nb", "a\n", "\na", "\n\n", "a\r\nb", "a\x85b", "a\xa0b", "a\u2028b", "\u2029"),
    *("\ufeff", "\ufeffa", "\ufffe", "\uffff", "\U0001f600", "e\u0301", "\u202eabc", "\x07", "\x1b[0m", "\x7f"),
    *("a: b", "a #b", "- a", "# gcloud", "!!str a", "|\na", '{"a": 1}', "--x y", "; rm x", "2024-01-01 00:00:00 +1"),
    *("a" * 300, "a b " * 200, "x" * 130),
]
#: Names that a container's variable can have, those above among them.
VARIABLES = [*("A", "_", "_1", "LR", "path_2", "X" * 300), *(word for word in WORDS.split() if NAME.fullmatch(word))]
PIECES = ["", " ", "\n", "\u2028", *"a1e-:#'\",\\é{[&*!|%~"]


class Hostile:
    """Makes texts.

    Args:
        seed: of the generator.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self) -> str:
        if self.random.random() < 0.7:
            return self.random.choice(TEXTS)
        return "".join(self.random.choice(PIECES) for _ in range(self.random.randint(0, 8)))

    def texts(self, most: int = 6) -> list[str]:
        return [self.text() for _ in range(self.random.randint(0, most))]

    def name(self) -> str:
        """A display name; most of them one that can be."""
        return self.text() or "job"

    def variables(self) -> dict[str, str]:
        return {self.variable(): self.text() or "1" for _ in range(self.random.randint(0, 3))}

    def variable(self) -> str:
        """A name of a variable; one in ten is any text, most of which no variable can be called."""
        if self.random.random() < 0.1:
            return self.text().replace("=", "") or "A"
        return self.random.choice(VARIABLES)


def job_of_flags(make: Hostile) -> tuple[dict[str, Any], str] | None:
    """What `job config` is given, and the file that it prints; None if it refuses it."""
    given = {"name": make.name(), "env": make.variables(), "command": make.texts(3), "args": make.texts()}
    variables = [f"{name}={value}" for name, value in given["env"].items()]
    flags = JobFlags(
        name=given["name"],
        accelerator="l4:2",
        arguments=given["args"],
        command=shlex.join(given["command"]),
        env=variables,
    )
    try:
        prepared = prepare_job(flags, ProjectSettings(region="us-central1", image=IMAGE))
    except UserError:
        return None
    return given, config_text(prepared, "config.yaml")


def many_jobs_of_flags(number: int, seed: int) -> None:
    made = [found for found in map(job_of_flags, [Hostile(seed * 100_000 + each) for each in range(number)]) if found]
    assert len(made) > number * 0.6
    for (given, text), sent in zip(made, read_by_gcloud([("custom", text) for _, text in made]), strict=True):
        assert "refused" not in sent, (sent, text)
        (pool,) = sent["workerPoolSpecs"]
        container = pool["containerSpec"]
        assert container.get("command", []) == given["command"], text
        assert container.get("args", []) == given["args"], text
        assert {each["name"]: each["value"] for each in container.get("env", [])} == given["env"], text
        (line,) = [line for line in text.splitlines() if line.startswith("# gcloud ")]
        assert f"--display-name={given['name']}" in shlex.split(line.removeprefix("# "))


def old_job(make: Hostile) -> tuple[dict[str, Any], list[str] | None]:
    """A `Job` of AI Platform Training, and the arguments behind `--`."""
    pick, chance = make.random.choice, make.random.random
    gpu = {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": 1}} if chance() < 0.7 else {}
    training: dict[str, Any] = {"scaleTier": "CUSTOM", "masterType": "n1-standard-8", "region": "us-central1"}
    training["masterConfig"] = {"imageUri": IMAGE, **gpu}
    for role in ("worker", "parameterServer", "evaluator"):
        if chance() < 0.4:
            training |= {f"{role}Type": "n1-highmem-8", f"{role}Count": pick((1, 3))}
    behind = make.texts() if chance() < 0.4 else None
    if behind is None and chance() < 0.5:
        training["masterConfig"] |= {"containerCommand": make.texts(3), "containerArgs": make.texts()}
    elif behind is None:
        training["args"] = make.texts()
    if chance() < 0.3:
        parameters = [
            {"parameterName": pick(("n", "y", "1e-4", "lr", "null", make.text())), "type": "CATEGORICAL"}
            | {"categoricalValues": [make.text() for _ in range(3)]}
            for _ in range(2)
        ]
        training["hyperparameters"] = {"params": parameters, "hyperparameterMetricTag": pick(("y", "loss", "1e5"))}
    labels = {pick(("n", "y", "off", "null", "team")): pick(("1", "010", "no", "1e5", "")) for _ in range(2)}
    return {"jobId": make.name(), "labels": labels, "trainingInput": training}, behind


def given_to(job: dict[str, Any], behind: list[str] | None, role: str) -> tuple[list[str], list[str]]:
    """Command and arguments of a role, as the old job says."""
    training = job["trainingInput"]
    config = training.get(f"{role}Config", {})
    return config.get("containerCommand", []), config.get("containerArgs", behind or training.get("args", []))


def many_old_jobs(number: int, seed: int, folder: Path) -> None:
    made = []
    for each in range(number):
        job, behind = old_job(Hostile(seed * 100_000 + each))
        try:
            text = yaml.safe_dump(job)
            found = migrate(read_job(text, "old.yaml"), parse_command([], behind))
        except UserError:
            continue
        made.append((job, behind, found, found.config_text("old.yaml", "vertex.yaml")))
    assert len(made) > number * 0.4
    configs = [("tuning" if found.is_tuning else "custom", text) for _, _, found, text in made]
    for (job, behind, found, text), sent in zip(made, read_by_gcloud(configs), strict=True):
        if found.gcloud_command("vertex.yaml") is None:
            assert "Exactly one of fields [pythonPackageSpec, containerSpec]" in sent["refused"]
            (folder / "vertex.yaml").write_text(text, encoding="utf-8")
            sent = sent_by_job_submit(found.own_command("vertex.yaml") or "", found.name, folder / "vertex.yaml")
        assert "refused" not in sent, (sent, text)
        spec = sent["trialJobSpec"] if found.is_tuning else sent
        roles = ("master", "worker", "parameterServer", "evaluator")
        for role, pool in zip(roles, spec["workerPoolSpecs"], strict=False):
            container = pool.get("containerSpec", {})
            wanted = given_to(job, behind, role) if pool else ([], [])
            assert (container.get("command", []), container.get("args", [])) == wanted, text
        if found.is_tuning:
            assert sent["labels"] == job["labels"]
            tuned = job["trainingInput"]["hyperparameters"]["params"]
            read = [
                (each["parameterId"], each["categoricalValueSpec"]["values"])
                for each in sent["studySpec"]["parameters"]
            ]
            assert read == [(each["parameterName"], each["categoricalValues"]) for each in tuned], text


def sent_by_job_submit(printed: str, name: str, file: Path) -> dict[str, Any]:
    """What the printed `gpu-pipelines job submit` would send, of a job that gcloud refuses."""
    words = shlex.split(printed)
    assert words[:5] == ["gpu-pipelines", "job", "submit", f"--config={file.name}", f"--name={name}"]
    prepared = prepare_job(JobFlags(name=name), ProjectSettings(project="example-project", region="us-central1"), file)
    job_spec: dict[str, Any] = job_document(prepared)["jobSpec"]
    return job_spec


pytestmark = pytest.mark.usefixtures("no_project_settings")


def test_gcloud_reads_what_40_jobs_of_flags_were_given() -> None:
    many_jobs_of_flags(40, seed=1)


def test_gcloud_reads_what_100_old_jobs_say(tmp_path: Path) -> None:
    many_old_jobs(100, seed=2, folder=tmp_path)


@pytest.mark.slow
def test_gcloud_reads_what_2000_jobs_of_flags_were_given() -> None:
    many_jobs_of_flags(2000, seed=3)


@pytest.mark.slow
def test_gcloud_reads_what_2000_old_jobs_say(tmp_path: Path) -> None:
    many_old_jobs(2000, seed=4, folder=tmp_path)


def test_the_whole_command_reaches_the_service_as_it_was_given(vertex_api: VertexApi, tmp_path: Path) -> None:
    """One job with every text at once, by gcloud as it is run."""
    texts = [text for text in TEXTS if text]
    environment = {f"V{number}": text for number, text in enumerate(texts[:100])}
    name = "it's a  'job' #1 é"
    words = ("--accelerator", "l4:2", "--region", "us-central1", "--image", IMAGE, "--project", "example-project")
    variables = [f"--env={variable}={text}" for variable, text in environment.items()]
    named = (f"--name={name}", "--label", "n=010", "-o", str(tmp_path / "config.yaml"))
    made = command("job", "config", *words, *variables, *named, "--", *texts)
    assert made.status == 0, made.err
    vertex_api.answer_to(shlex.split(made.out.splitlines()[-1]))
    (request,) = vertex_api.state.requests_of("CreateCustomJob")
    container = request.custom_job.job_spec.worker_pool_specs[0].container_spec
    assert list(container.args) == texts
    assert {each.name: each.value for each in container.env} == environment
    assert request.custom_job.display_name == name
    assert dict(request.custom_job.labels) == {"n": "010"}


def test_a_text_that_no_request_can_have_is_refused() -> None:
    for words in (("--", "a\udcffb"), ("--env", "A=a\udcffb")):
        done = command("job", "config", "--accelerator", "l4:2", "--image", IMAGE, *words)
        assert done.status == 2
        assert "not UTF-8" in done.err
    with pytest.raises(UserError, match="not UTF-8"):
        CloudOptions(env=["A=a\udcffb"]).environment  # noqa: B018
    done = command("job", "config", "--accelerator", "l4:2", "--image", IMAGE, "--name", "a\nworkerPoolSpecs: []")
    assert "do not fit on one line" in done.err

"""`tune_train_evaluate_upload`: what it compiles to, its options, what is refused, and real runs that are killed.

KFP reads annotations as they are, so they are not postponed here.
"""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import command
from conftest import GPU_PIPELINES, gpu_pipelines, newest_run
from kfp import dsl

from gpu_pipelines.dag import load_pipeline
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.compiled import compiled
from gpu_pipelines.targets.local.target import LocalTarget

TUNED = "tune_train_evaluate_upload"
SETTINGS = ("--project", "my-project-123", "--region", "us-central1", "--pipeline-root", "gs://bucket/root")
IMAGE = ("--image", "europe-docker.pkg.dev/p/r/steps:1")
SPACE = """# What is searched for.
learning_rate: {type: float, low: 1e-3, high: 1e-1, log: true}
optimizer:
  type: categorical
  choices: [adamw, sgd]
"""
READ = {
    "learning_rate": {"type": "float", "low": "1e-3", "high": "1e-1", "log": "true"},
    "optimizer": {"type": "categorical", "choices": ["adamw", "sgd"]},
}


@pytest.fixture
def space(tmp_path: Path) -> Path:
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path / "space.yaml"


def tasks_of(spec: dict[str, Any]) -> dict[str, Any]:
    tasks: dict[str, Any] = spec["root"]["dag"]["tasks"]
    return tasks


def read_spec(file: Path) -> dict[str, Any]:
    spec: dict[str, Any] = next(iter(yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader)))
    return spec


@pytest.mark.usefixtures("no_project_settings")
@pytest.mark.parametrize("target", ["local", "kubeflow"])
def test_the_search_is_one_step_on_the_accelerator(target: str, tmp_path: Path) -> None:
    on = () if target == "local" else ("--accelerator", "l4:4")
    file = tmp_path / "out.yaml"
    done = command("compile", TUNED, "--target", target, *on, "-o", str(file))
    assert done.status == 0, done.err
    spec = read_spec(file)
    tasks = tasks_of(spec)
    assert tasks.keys() == {"check-request", "prepare-data", "tune-model", "evaluate-checkpoints", "upload-model"}
    assert tasks["evaluate-checkpoints"]["inputs"]["artifacts"]["checkpoints"] == {
        "taskOutputArtifact": {"producerTask": "tune-model", "outputArtifactKey": "checkpoints"}
    }
    known = spec["root"]["inputDefinitions"]["parameters"]
    assert "isOptional" not in known["space"], "nobody searches without a space"
    assert known["trials"]["defaultValue"] == 40
    price = known["dollars_per_hour"]["defaultValue"]
    assert price == 0 if target == "local" else price > 1, "that of the accelerator"
    given = tasks["tune-model"]["inputs"]["parameters"]
    assert given["budget"] == {"componentInputParameter": "budget"}
    assert "checkpoints/" in json.dumps(given["checkpoint_uri"]), "of the run, and not of the attempt"
    # The first step checks them all.
    assert {"space", "trials", "budget"} <= tasks["check-request"]["inputs"]["parameters"].keys()
    text = json.dumps(spec["components"]["comp-tune-model"]) + json.dumps(spec["deploymentSpec"])
    assert target == "local" or "nvidia.com/gpu" in text


@pytest.mark.usefixtures("no_project_settings")
def test_on_vertex_ai_the_search_is_a_tuning_job_between_two_steps(tmp_path: Path) -> None:
    file = tmp_path / "out.yaml"
    done = command("compile", TUNED, "--target", "vertex", "--accelerator", "l4:4", "-o", str(file))
    assert done.status == 0, done.err
    spec = read_spec(file)
    tasks, known = tasks_of(spec), spec["root"]["inputDefinitions"]["parameters"]
    begun, told = (
        tasks["begin-study"]["inputs"]["parameters"],
        tasks["hyperparameter-tuning-job"]["inputs"]["parameters"],
    )
    assert known["dollars_per_hour"]["defaultValue"] > 1
    assert begun["budget"] == {"componentInputParameter": "budget"}
    assert "checkpoints/" in json.dumps(begun["checkpoint_uri"]), "of the run, and not of the attempt"
    assert told["max_trial_count"]["taskOutputParameter"]["producerTask"] == "begin-study"
    assert "NVIDIA_L4" in json.dumps(told["worker_pool_specs"])
    ended = tasks["evaluate-checkpoints"]["inputs"]["artifacts"]["checkpoints"]["taskOutputArtifact"]
    assert ended["producerTask"] == "condition-branches-1"


@pytest.mark.usefixtures("no_project_settings")
def test_options_of_the_search_are_defaults_in_a_file(space: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.yaml"
    options = ("--space", str(space), "--trials", "12", "--parallel", "4", "-p", "sampler=random")
    there = ("--target", "vertex", "--accelerator", "l4:4")
    done = command("compile", TUNED, *there, *options, "-o", str(file))
    assert done.status == 0, done.err
    known = read_spec(file)["root"]["inputDefinitions"]["parameters"]
    assert json.loads(known["space"]["defaultValue"]) == READ
    assert (known["trials"]["defaultValue"], known["parallel_trials"]["defaultValue"]) == (12, 4)
    assert known["advanced"]["defaultValue"] == {"sampler": "random"}
    wrong = command("compile", TUNED, *there, "--trials", "0", "--space", str(space))
    assert wrong.status == 2
    assert "trials is 0" in wrong.err
    other = command("compile", "train_evaluate_upload", *there, "--trials", "3")
    assert other.status == 2
    assert "There is no parameter 'trials'" in other.err
    compiled_already = command("compile", str(file), *there, "--trials", "3")
    assert compiled_already.status == 2


@pytest.mark.usefixtures("no_project_settings")
def test_a_dry_run_says_what_it_would_do_and_cost(space: Path) -> None:
    there = ("--target", "vertex", "--accelerator", "l4:4", "--dry-run", *SETTINGS, *IMAGE)
    asked = ("--space", str(space), "--trials", "27", "--parallel", "4", "--budget", "20", "-p", "max_steps=90")
    done = command("run", TUNED, *asked, *there)
    assert done.status == 0, done.err
    assert "hyperparameter-tuning-job: 1 × g2-standard-48 with 4 × NVIDIA_L4" in done.err
    assert "27 trials, 4 at a time, each on machines of its own" in done.err
    assert "at most 27, 2,430 steps" in done.err
    assert "at most $20.00" in done.err
    values = json.loads(done.out)["body"]["runtimeConfig"]["parameterValues"]
    assert json.loads(values["space"]) == READ
    assert (values["trials"], values["parallel_trials"], values["budget"]) == (27, 4, 20)
    same = command("run", TUNED, "-p", f"space={space}", "-p", "trials=27", "-p", "parallel_trials=4", *there)
    assert json.loads(same.out)["body"]["runtimeConfig"]["parameterValues"]["space"] == values["space"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "The parameter space must be given."),
        (("--space", "none.yaml"), "none.yaml cannot be read"),
        (("--space", "broken.yaml"), "broken.yaml"),
        (("--space", "space.yaml", "--budget", "5"), "no price is known of what the search runs on"),
        (("--space", "space.yaml", "--trials", "many"), "trials takes a whole number (at most 2^53); got 'many'"),
        (("--space", "space.yaml", "-p", "learning_rate=0.1"), "learning_rate is searched for, and given as well"),
        (("--space", "space.yaml", "--trial"), "--trial tries one training, not a search"),
        (("--space", "wrong.yaml", "--trials", "0"), "4 things are wrong"),
    ],
)
@pytest.mark.usefixtures("no_project_settings")
def test_what_is_wrong_is_said_before_anything_runs(given: tuple[str, ...], said: str, space: Path) -> None:
    (space.parent / "broken.yaml").write_text("learning_rate: {type: float")
    (space.parent / "wrong.yaml").write_text(
        "lerning_rate: {type: float, low: 1, high: 2}\n"
        "warmup_steps: {type: int, low: 60, high: 0}\n"
        "optimizer: {type: categorical, choices: [adamw, sgdd]}\n"
    )
    done = command("run", TUNED, *given, cwd=space.parent)
    assert done.status == 2
    assert said in done.err
    assert not (space.parent / "runs").exists()


@dsl.component(base_image="python:3.11")
def search_elsewhere(trials: int, checkpoints: dsl.Output[dsl.Artifact], training_report: dsl.Output[dsl.HTML]) -> None:  # type: ignore[valid-type]
    """What a service does."""


class WithAService(LocalTarget):
    """A place with a service for studies."""

    def study(self, component: Any, plan: Any) -> Callable[..., Any]:
        return lambda **inputs: search_elsewhere(trials=inputs["trials"])


def test_a_target_may_carry_out_the_search_in_its_own_way() -> None:
    module = load_pipeline(TUNED)
    spec = yaml.load(compiled(module.build(WithAService(), None)), Loader=yaml.CSafeLoader)
    tasks = tasks_of(spec)
    assert "tune-model" not in tasks
    assert tasks["search-elsewhere"]["inputs"]["parameters"]["trials"] == {"componentInputParameter": "trials"}
    taken = tasks["evaluate-checkpoints"]["inputs"]["artifacts"]["checkpoints"]["taskOutputArtifact"]
    assert taken["producerTask"] == "search-elsewhere"


def test_one_that_has_no_way_of_its_own_searches_on_one_machine() -> None:
    from gpu_pipelines.accelerators import plan

    module, two = load_pipeline(TUNED), plan("l4:8", nodes=2)
    with pytest.raises(UserError, match="l4:8 on 2 nodes: a search runs on one machine"):
        module.build(LocalTarget(), two)
    module.build(WithAService(), two)


REQUEST = (
    "run", TUNED, "--space", "space.yaml", "--trials", "3", "--parallel", "2", "--accelerator", "cpu:2",
    "-p", "task=regression", "-p", "model=mlp-small", "-p", "max_steps=180", "-p", "global_batch_size=8",
    "-p", "smoke_test=false",
)  # fmt: skip


@pytest.mark.slow
def test_a_run_that_is_killed_in_its_search_continues_it_and_registers_the_best(space: Path) -> None:
    here = space.parent
    process = subprocess.Popen(
        [str(GPU_PIPELINES), *REQUEST], cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    study = "artifacts/checkpoints/*/journal.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = list(here.glob(f"runs/*/{study}"))
        if found and len(found[0].read_text().splitlines()) >= 4:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    before = found[0].read_text().splitlines()
    done = gpu_pipelines(*REQUEST, "--resume", cwd=here)
    assert done.status == 0, done.out + done.err
    assert "registered diabetes version 1 as challenger and champion" in done.out
    after = found[0].read_text().splitlines()
    assert after[: len(before)] == before, "what was known is not done again"
    lines = [json.loads(line) for line in after]
    assert len({(line["trial"], line.get("rung")) for line in lines}) == len(lines), "nothing twice"
    assert {line["trial"] for line in lines} == {0, 1, 2}
    record = newest_run(here)
    page = (record["directory"] / "report.html").read_text()
    assert "tune-model" in page
    again = gpu_pipelines(*REQUEST, cwd=here)
    assert "diabetes version 1 (challenger, champion) is the same model, byte for byte" in again.out, again.out

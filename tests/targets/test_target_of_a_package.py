"""A target that another package brings: the commands take it with its options, and judge by it what its steps reach."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from conftest import GPU_PIPELINES, PIPELINE, Finished

#: A place where runs are files in a folder, which whoever works there reads; what it reads is on a tape.
SHELF = """
import json
from dataclasses import dataclass
from pathlib import Path

from gpu_pipelines.accelerators import plan
from gpu_pipelines.dag import load_pipeline
from gpu_pipelines.targets.compiled import compiled, documents_of
from gpu_pipelines.targets.options import LOOKING, AcceleratorOptions, fixed, option
from gpu_pipelines.targets.messages import Compiled, Done, Outcome, Submission
from gpu_pipelines.targets.target import Target


@dataclass(frozen=True, kw_only=True)
class ShelfOptions(AcceleratorOptions):
    shelf: Path = option(Path("shelf"), "Folder of the runs.", LOOKING | {"run"}, metavar="DIR")
    tape: str = option("", "Tape that is put in.", {"run", "compile"}, words=fixed("red", "blue"), in_file=True)


class Shelf(Target):
    name, title, readers = "shelf", "the shelf", "the shelf"
    place_for_data = "a tape"
    Options = ShelfOptions
    checkpoint_uri, registry, pipeline_job, encryption_key = None, "/tape/registry", "{{$.pipeline_job_name}}", ""
    notification, parameters, note, for_check = None, {}, "", {"place": "local"}

    def can_read(self, uri):
        return super().can_read(uri) or uri.startswith("/tape/")

    def can_write(self, path):
        return path.startswith("/tape/")

    def place(self, component, plan):
        def task(**arguments):
            return component(**arguments).set_env_variable("TAPE", self.options.tape)

        return task

    def compile(self, pipeline, task=""):
        text = compiled(load_pipeline(pipeline).build(self, plan(self.options.accelerator or "cpu:2"), task=task))
        return Compiled(pipeline, text, documents_of(text)[0], told=["a tape is put in"])

    def load(self, request):
        if self.options.tape == "none":
            return Compiled(request.pipeline, built=load_pipeline(request.pipeline).build(self, plan("cpu:2")))
        return self.compile(request.pipeline)

    def submission(self, compiled, request, values):
        return Submission({"state": "waiting", "values": values.taken}, lambda: ["it would be put on the shelf"])

    def submit(self, submission):
        self.options.shelf.mkdir()
        (self.options.shelf / "run-1").write_text(json.dumps(submission.content))
        return Done("run-1", {"run": "run-1"}, ["put on the shelf as run-1"])

    def follow(self, run, watch, every):
        state = json.loads((self.options.shelf / run).read_text())["state"]
        with watch.steps() as observer:
            observer.step_began("train-model")
        lines = ["it is done"] if state == "succeeded" else [f"error: {run} is {state}"]
        return Outcome(state, lines, {"state": state})

    def is_run(self, run):
        return run.startswith("run-") or len(run) == 36

    def retried(self, run):
        return Submission({"state": "waiting", "again": run}, lambda: [f"{run} would be put back on the shelf"])
"""


#: Targets with options that cannot stand beside those of others; --resume of the last is one of `run`'s own.
CLASHING = """
from dataclasses import dataclass

from gpu_pipelines.targets.options import Options, option
from gpu_pipelines.targets.target import Target
from shelf_target import Shelf


@dataclass(frozen=True, kw_only=True)
class OtherOptions(Options):
    region: int = option(3, "Number of the region.", {"run"})


@dataclass(frozen=True)
class PlainOptions:
    pass


class BareOptions(Options):
    lamp: int = option(3, "Lamp.", {"run"})


@dataclass(frozen=True, kw_only=True)
class OwnOptions(Options):
    resume: int = option(3, "Resumes.", {"run"})


class Other(Shelf):
    name, Options = "other", OtherOptions


class Plain(Shelf):
    name, Options = "plain", PlainOptions


class Bare(Shelf):
    name, Options = "bare", BareOptions


class Bald(Target):
    name, title, Options, checkpoint_uri = "bald", "the bald", Options, None
    place, compile, load, submission = Shelf.place, Shelf.compile, Shelf.load, Shelf.submission


class Own(Shelf):
    name, Options = "own", OwnOptions

    def is_run(self, run):
        return False
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package is installed, and others that are no targets, or have the name of one."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "shelf_target.py").write_text(SHELF)
    (folder / "broken_target.py").write_text("import no_such_module_at_all\n")
    (folder / "clashing_target.py").write_text(CLASHING)
    (folder / "ending_target.py").write_text("raise SystemExit(3)\n")
    entries = {"shelf": "shelf_target:Shelf", "broken": "broken_target:Broken", "local": "shelf_target:Shelf"}
    entries |= {"options": "shelf_target:ShelfOptions", "rack": "shelf_target:Shelf", "ending": "ending_target:End"}
    entries |= {name: f"clashing_target:{name.title()}" for name in ("other", "plain", "bare", "bald", "own")}
    for name, entry in entries.items():
        info = folder / f"{name}_target-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-target\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[gpu_pipelines.targets]\n{name} = {entry}\n")
    return folder


def command(site: Path, cwd: Path, *arguments: str) -> Finished:
    done = subprocess.run(
        [str(GPU_PIPELINES), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def test_a_pipeline_is_compiled_run_and_followed_on_it(site: Path, tmp_path: Path) -> None:
    made = command(site, tmp_path, "compile", PIPELINE, "--target", "shelf", "--tape", "blue", "-o", "x.yaml")
    assert made.status == 0, made.err
    assert "a tape is put in" in made.err
    for name, why in (
        ("broken", "ModuleNotFoundError"),
        ("local", "the name is taken"),
        ("options", "it is not a subclass of gpu_pipelines.targets.target.Target"),
        ("rack", "its name is 'shelf'"),
        ("ending", "SystemExit: 3"),
        ("other", "--region has another type or default than that of compute_engine; a command has it once"),
        ("plain", "its Options is not a subclass of gpu_pipelines.targets.options.Options"),
        ("bare", "its Options is not decorated with @dataclass"),
    ):
        assert f"the target {name} of {name}-target cannot be loaded: {why}" in made.err
    executors = yaml.safe_load((tmp_path / "x.yaml").read_text())["deploymentSpec"]["executors"]
    assert all({"name": "TAPE", "value": "blue"} in each["container"]["env"] for each in executors.values())
    where = ("run", PIPELINE, "--target", "shelf", "--shelf", "runs")
    refused = command(site, tmp_path, *where, "-p", "source=photos", "-p", "registry=./models")
    assert refused.status == 2
    assert "warning: --resume of a target is left out: the command has its own" in refused.err
    assert "The source photos is not where the shelf can read it. Copy it into a tape." in refused.err
    assert "The registry ./models would be a directory of the container" in refused.err
    assert not (tmp_path / "runs").exists()
    done = command(site, tmp_path, *where, "-p", "source=/tape/photos", "-p", "epochs=3", "--follow")
    assert done.status == 1
    assert "put on the shelf as run-1\nfollow: gpu-pipelines follow run-1 --target shelf\n" in done.out
    assert "train-model: started" in done.out
    assert "error: run-1 is waiting" in done.err
    kept = tmp_path / "runs" / "run-1"
    content = json.loads(kept.read_text())
    assert (content["values"]["source"], content["values"]["epochs"]) == ("/tape/photos", 3.0)
    kept.write_text(json.dumps({**content, "state": "succeeded"}))
    followed = command(site, tmp_path, "follow", "run-1", "--target", "shelf", "--shelf", "runs")
    assert (followed.status, followed.out.splitlines()[-1]) == (0, "it is done")


def test_a_pipeline_runs_there_as_it_was_built_without_a_file(site: Path, tmp_path: Path) -> None:
    where = ("run", PIPELINE, "--target", "shelf", "--tape", "none")
    done = command(site, tmp_path, *where, "-p", "source=/tape/photos", "-p", "epochs=3")
    assert done.status == 0, done.err
    content = json.loads((tmp_path / "shelf" / "run-1").read_text())
    assert (content["values"]["source"], content["values"]["epochs"]) == ("/tape/photos", 3.0)


@pytest.mark.parametrize("run", ["run-1", "7fb7caa1-6fb3-46a3-9c50-3cc8c48c5306"])
def test_a_run_goes_on_there_whatever_it_is_called(site: Path, tmp_path: Path, run: str) -> None:
    done = command(site, tmp_path, "run", "--resume", run, "--target", "shelf", "--dry-run")
    assert (done.status, done.out) == (0, f"{run} would be put back on the shelf\n"), done.err


def test_a_run_of_it_is_known_by_its_name_elsewhere(site: Path, tmp_path: Path) -> None:
    done = command(site, tmp_path, "run", "--resume", "run-1")
    assert (done.status, done.out) == (2, "")
    assert "run-1 is on the shelf, which does not report what the steps of a run made." in done.err
    assert "Continue it there (--target shelf)" in done.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run", PIPELINE, "--tape", "red"), "The target local has no --tape.\n  It belongs to shelf."),
        (("run", PIPELINE, "--target", "shelf", "--nodes", "2"), "The target shelf has no --nodes.\n  It belongs to"),
        (("cancel", "run-1", "--target", "shelf"), "cancel is not for the target shelf.\n  It is for "),
        (("schedule", "list", "--target", "shelf"), "schedule list is not for the target shelf."),
        (("compile", PIPELINE, "--target", "bald"), "The target bald has no registry, pipeline_job, encryption_key,"),
        (("run", PIPELINE, "--target", "shelv"), "There is no target 'shelv'.\n  Did you mean 'shelf'?"),
    ],
    ids=lambda value: " ".join(value)[:24] if isinstance(value, tuple) else "",
)
def test_what_it_does_not_have_is_refused_with_who_has_it(
    site: Path, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    done = command(site, tmp_path, *arguments)
    assert (done.status, done.out) == (2, "")
    assert told in done.err
    assert "Traceback" not in done.err


def test_its_options_stand_in_the_help(site: Path, tmp_path: Path) -> None:
    told = command(site, tmp_path, "run", "-h").out
    assert "shelf: Folder of the runs." in told
    assert "shelf" in told.partition("--target <str>")[2][:160]
    assert "--tape" not in command(site, tmp_path, "follow", "-h").out

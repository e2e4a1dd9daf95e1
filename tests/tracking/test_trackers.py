"""What can be wrong with `tracking`; and a tracker that another package brings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import command
from followed import STEPS, require_whole, training
from forked import Forked

from gpu_pipelines.accelerators import plan
from gpu_pipelines.tracking.facts import facts_of_plan
from gpu_pipelines.tracking.mlflow_tracker import MlflowTracker
from gpu_pipelines.tracking.tracked import Tracked, run_at
from gpu_pipelines.tracking.tracker import TrackedRun
from gpu_pipelines.tracking.trackers import problems_of_tracking

#: One that keeps each curve in a file.
NOTEBOOK = """
import json
from pathlib import Path

from gpu_pipelines.tracking.tracker import Tracker


class Notebook(Tracker):
    title = "a notebook"

    @classmethod
    def problems(cls, address, place, *, is_here):
        return [] if address[0] == "/" else [f"tracking is notebook:{address}. Give notebook:/FOLDER."]

    def _read(self):
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def _add(self, **more):
        self.path.write_text(json.dumps({**self._read(), **more}))

    def begin(self, run):
        self.path = Path(self.address) / f"{run.name}.json"
        self._add(status="running")

    def last_steps(self):
        return {name: points[-1][0] for name, points in self._read().get("curves", {}).items()}

    def log_points(self, points):
        curves = self._read().get("curves", {})
        for point in points:
            curves.setdefault(point.name, []).append((point.step, point.value))
        self._add(curves=curves)

    def log_parameters(self, values):
        self._add(parameters={**self._read().get("parameters", {}), **values})

    def log_figures(self, values):
        self._add(figures={**self._read().get("figures", {}), **values})

    def end(self, succeeded):
        self._add(status="succeeded" if succeeded else "failed")
"""


@pytest.fixture
def package(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python in which the package is installed."""
    folder = tmp_path / "site"
    information = folder / "notebook_tracker-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "notebook_tracker.py").write_text(NOTEBOOK)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: notebook-tracker\nVersion: 1.0\n")
    entries = ["notebook = notebook_tracker:Notebook", "none_at_all = json:JSONDecoder", "half = half_tracker:Half"]
    (information / "entry_points.txt").write_text("\n".join(["[gpu_pipelines.trackers]", *entries, ""]))
    half = "from gpu_pipelines.tracking.tracker import Tracker\n\nclass Half(Tracker):\n    title = 'half'\n"
    (folder / "half_tracker.py").write_text(half)
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_a_tracker_of_a_package_follows_a_training(package: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    arguments = training(f"notebook:{tmp_path}/notes", tmp_path / "run-1")
    done = subprocess.run([sys.executable, *arguments], env=package, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "notes" / "run-1.json").read_text())
    require_whole({name: [tuple(point) for point in points] for name, points in kept["curves"].items()}, STEPS)
    assert kept["parameters"] == {"model": "vit-micro", "seed": "0"}
    assert kept["figures"] == {"test_accuracy": 0.75, "test_accuracy_low": 0.5}
    assert kept["status"] == "succeeded"


#: Goes on once the tracker has the curve that it has begun.
SCRIPT = """
import json, os, sys, time
from pathlib import Path
def write(step):
    with open(os.environ["GPU_PIPELINES_METRICS"], "a") as file:
        file.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
write(1)
while not any('"loss"' in path.read_text() for path in Path(sys.argv[1]).glob("*.json")):
    time.sleep(0.05)
write(2)
"""
STEP = """
import sys
from kfp import dsl
from gpu_pipelines.training.script.settings import ScriptSettings
from gpu_pipelines.training.script.step import run
folder, notes = sys.argv[1:]
names = ("dataset", "checkpoints", "training_metrics", "training_report")
kinds = (dsl.Dataset, dsl.Artifact, dsl.Metrics, dsl.HTML)
made = {name: kind(name=name, uri=f"{folder}/{name}") for name, kind in zip(names, kinds)}
settings = ScriptSettings(script=f"{folder}/script.py", launcher="plain", arguments=[notes])
run(settings, **made, checkpoint_uri=f"{folder}/run-1", tracking=f"notebook:{notes}")
"""


@pytest.mark.slow
def test_a_script_of_a_users_own_is_followed_while_it_runs(package: dict[str, str], tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-c", STEP, str(tmp_path), str(notes)]
    done = subprocess.run(command, env=package, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = json.loads((notes / "run-1.json").read_text())
    assert kept["curves"] == {"loss": [[1, 1.0], [2, 0.5]]}
    told = {"script": f"{tmp_path}/script.py", "launcher": "plain", "arguments": str(notes), "processes": "1"}
    assert told.items() <= kept["parameters"].items()
    assert kept["status"] == "succeeded"


@pytest.mark.parametrize(
    ("tracking", "told"),
    [
        ("notebook:x", "Give notebook:/FOLDER."),
        ("notebook", "its problems failed (notebook_tracker.py, line 13: IndexError)"),
        ("none_at_all", "json:JSONDecoder is not a subclass of gpu_pipelines.tracking.tracker.Tracker."),
        ("half", "The tracker half does not define begin, end, "),
    ],
)
def test_the_command_line_asks_it_what_is_wrong(
    package: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracking: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ask = ["run", "train_evaluate_upload", "--dry-run", "-p", f"tracking={tracking}"]
    process = Forked("gpu_pipelines.cli.main", ask, package)
    _, error = process.communicate()
    assert process.returncode == 2, error
    assert told in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("tracking", "place", "is_here", "told"),
    [
        ("mlfow", "local", True, "There is no tracker 'mlfow'."),
        ("mlflow", "vertex", False, "the address of the server is not known. Give mlflow:https://HOST"),
        ("mlflow", "kubeflow", True, "the address of the server is not known"),
        ("mlflow:sqlite:////tmp/x.db", "vertex", False, "a file that would be lost with its machine"),
        ("mlflow:here", "local", True, "mlflow:here, which is not an address of MLflow"),
        ("mlflow:https://me:hunter2@host", "local", True, "has a password or a key in its address"),
        ("mlflow:https://host?api_key=hunter2", "local", True, "has a password or a key in its address"),
        ("vertex:My_Experiment", "vertex", False, "lower-case letters, digits and dashes"),
        ("wandb:a/b/c", "local", False, "Give wandb:ENTITY/PROJECT"),
        ("wandb", "local", True, "there is no login. Run wandb login, set WANDB_API_KEY"),
        ("vertex", "local", True, "no project and no region is known"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    tracking: str,
    place: str,
    is_here: bool,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    no_project_settings: None,
) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "MLFLOW_TRACKING_URI", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (problem,) = problems_of_tracking(tracking, place, is_here=is_here)
    assert told in problem
    assert "hunter2" not in problem


def test_what_is_right_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for tracking in ("", "none", "mlflow", "mlflow:https://host/path", "wandb:team/project"):
        assert problems_of_tracking(tracking, "local", is_here=True) == []
    # The plugin of Kubeflow Pipelines may say the address there.
    assert problems_of_tracking("mlflow", "kubeflow", is_here=False) == []


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_pipelines.tracking.trackers.find_spec", lambda name: None)
    (problem,) = problems_of_tracking("mlflow", "local", is_here=True)
    assert problem.endswith("Install it: pip install 'gpu-pipelines[mlflow]'.")


def test_a_library_inside_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MlflowTracker, "package", "no_such_vendor.metrics")
    (problem,) = problems_of_tracking("mlflow:https://host", "local", is_here=True)
    assert "no_such_vendor.metrics is not installed" in problem


def test_the_settings_of_the_project_name_a_tracker_and_a_parameter_wins(tmp_path: Path) -> None:
    (tmp_path / "gpu-pipelines.yaml").write_text("tracking: mlflow:http://tracker.example\n")
    ask = ("run", "train_evaluate_upload", "--accelerator", "cpu:1", "--dry-run")
    assert "mlflow:http://tracker.example" in command(*ask, cwd=tmp_path).out
    assert "tracker.example" not in command(*ask, "-p", "tracking=none", cwd=tmp_path).out
    (tmp_path / "gpu-pipelines.yaml").write_text("tracking: mlflow:http://me:hunter2@tracker.example\n")
    refused = command(*ask, cwd=tmp_path)
    assert refused.status == 2
    assert "without a password" in refused.err
    assert "hunter2" not in refused.err


def test_the_run_is_the_one_whose_checkpoints_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    root = "gs://bucket/root"
    assert run_at(f"{root}/checkpoints/run-7") == TrackedRun(f"{root}/checkpoints/run-7", "run-7")
    assert run_at(f"{root}/run-7/train-model_1/checkpoints").name == "run-7-train-model_1"
    # Continued with other parameters, it is another one, whose curve parts from the first one's.
    assert run_at(f"{root}/run-7", 80) == TrackedRun(f"{root}/run-7#80", "run-7-from-80")
    monkeypatch.setenv("GPU_PIPELINES_TRACKED_RUN", "/work/runs/run-8")
    assert run_at("/anywhere") == TrackedRun("/work/runs/run-8", "run-8")


def test_without_a_tracker_nothing_is_started(tmp_path: Path) -> None:
    with Tracked("none", run_at(str(tmp_path))) as tracked:
        tracked.require_tracker()
        tracked.follow(tmp_path)
        assert not tracked.is_on


def test_the_plan_has_its_list_price() -> None:
    told = facts_of_plan(plan("l4:2").spec).parameters
    assert told["accelerator"] == "l4:2"
    assert float(told["usd_per_hour"]) > 0
    assert facts_of_plan("cpu:2").parameters == {"accelerator": "cpu:2"}

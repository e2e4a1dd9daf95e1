"""A console of a test: runs and models as a pipeline leaves them, and a client with the token of its user."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.console.app import console_app
from gpu_pipelines.console.context import ConsoleSettings
from gpu_pipelines.console.emulator_link import EmulatorLink
from gpu_pipelines.registry import DirectoryRegistry
from gpu_pipelines.registry.registered import Promotion
from gpu_pipelines.targets.runs.record import RunRecord
from gpu_pipelines.targets.steps import StepRecord

#: What begins a console as a process of its own.
CONSOLE = (
    sys.executable,
    *["-m", "gpu_pipelines.cli.main", "console", "--port", "0", "--no-open", "--emulator", "none"],
)
PORT = 8991
ADDRESS = f"http://127.0.0.1:{PORT}"
STEPS = {"prepare-data": [], "train-model": ["prepare-data"], "evaluate-checkpoints": ["prepare-data", "train-model"]}


class Page(TestClient):
    """A client that has opened the address with the token.

    Attributes:
        console: what it looks at.
    """

    def __init__(self, folder: Path, link: EmulatorLink | None = None) -> None:
        settings = ConsoleSettings(folder / "runs", folder / "registry", PORT, link or EmulatorLink())
        app, self.console = console_app(settings)
        super().__init__(app, base_url=ADDRESS, raise_server_exceptions=False)
        self.get(f"/?token={self.console.held.token}")

    def text(self, path: str, status: int = 200) -> str:
        """The page at a path, which has to be answered with that status."""
        answer = self.get(path)
        assert answer.status_code == status, answer.text
        return str(answer.text)

    def submit(self, path: str, **fields: str) -> Any:
        """What a form of a page sends."""
        return self.post(path, data={"csrf": self.console.held.csrf, **fields}, follow_redirects=False)

    def drop(self, content: bytes, name: str = "pipeline.yaml") -> Any:
        """What dropping a file sends."""
        form = {"csrf": self.console.held.csrf}
        return self.post("/pipelines", data=form, files={"file": (name, content)}, follow_redirects=False)


def made_run(folder: Path, run_id: str, **said: Any) -> RunRecord:
    """A run of a training that has ended, with its logs and what it logged.

    Args:
        folder: that has the folder of runs.
        run_id: of the run.
        said: fields of its record, in place of those of a training that has succeeded.
    """
    directory = folder / "runs" / run_id
    (directory / "logs").mkdir(parents=True)
    steps = [StepRecord(name, "succeeded", 60.0 * (place + 1), f"logs/{name}.log") for place, name in enumerate(STEPS)]
    for step in steps:
        (directory / str(step.log)).write_text(f"{step.name} says hello\n", encoding="utf-8")
    (directory / "report.html").write_text("<h1>report</h1>", encoding="utf-8")
    checkpoints = directory / "artifacts" / "checkpoints" / "1"
    checkpoints.mkdir(parents=True)
    lines = [json.dumps({"step": step, "loss": 2.0 / step, "val_loss": 2.2 / step}) for step in range(1, 9)]
    (checkpoints / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    given: dict[str, Any] = {
        "pipeline": "train_evaluate_upload",
        "started": "2026-11-22T10:00:00+00:00",
        "parameters": {"source": "sample:digits", "learning_rate": 0.004, "seed": 0},
        "accelerator": "",
        "dependencies": STEPS,
        "status": "succeeded",
        "seconds": 360.0,
        "steps": steps,
        "metrics": {"test_accuracy": 0.9},
        "key_metric": "test_accuracy",
        "checkpoints": str(directory / "artifacts" / "checkpoints"),
    }
    record = RunRecord(run_id=run_id, directory=directory, **{**given, **said})
    record.save()
    return record


def now() -> str:
    """The time as records have it: of a run that goes on, later than its process began."""
    return datetime.now(timezone.utc).isoformat()


def evaluated(place: Path, accuracy: float, *, passed: bool = True) -> Path:
    """An exported model with an evaluation."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({"accuracy": accuracy}), encoding="utf-8")
    metrics = {"accuracy": {"value": accuracy, "low": accuracy - 0.02, "high": accuracy + 0.02}}
    gate = {"gate": "accuracy>=0.9", "value": accuracy, "threshold": 0.9, "passed": passed, "why": f"it is {accuracy}"}
    Evaluation(
        model_name="digits",
        task="image_classification",
        labels=["0", "1"],
        dataset_fingerprint="f",
        configuration={"settings": {}, "devices": {}},
        select_by="accuracy",
        checkpoints=[{"name": "step-1", "step": 1, "epoch": 1.0, "val": {"accuracy": accuracy}}],
        best="step-1",
        test={"rows": 100, "metrics": metrics},
        champion=None,
        gates=[gate],
        passed=passed,
        mistakes=[],
    ).save(place)
    return place


def registered(folder: Path, name: str, *accuracies: float) -> DirectoryRegistry:
    """A model with a version for each accuracy; the first is the champion, and those below 0.9 have failed."""
    registry = DirectoryRegistry(folder / "registry")
    for place, accuracy in enumerate(accuracies):
        passed = accuracy >= 0.9
        model = evaluated(folder / f"{name}-{place}", accuracy, passed=passed)
        info = {"metrics": {"accuracy": accuracy}, "passed": passed}
        registry.add(name, model, info, Promotion(wanted=place == 0, champion_seen=None))
    return registry


def unescaped(page: str, text: str) -> list[str]:
    """The places of a page where a text stands as it is."""
    return re.findall(re.escape(text), page)

"""Small real trainings for the tests: started, looked into, stopped and killed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from conftest import write_photos
from safetensors import safe_open

from gpu_pipelines.components.data_prep.prepare import prepare_data
from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.components.training.settings import TrainingSettings

TRAIN = """
import json, sys
from pathlib import Path
from gpu_pipelines.components.training.settings import TrainingSettings
from gpu_pipelines.components.training.train import train_model
from gpu_pipelines.errors import user_errors_end_the_step
with user_errors_end_the_step():
    train_model(TrainingSettings(**json.loads(sys.argv[1])), Path(sys.argv[2]), sys.argv[3])
"""


@dataclass(frozen=True)
class Ended:
    """How a training that ran in processes of its own ended."""

    status: int
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def run_training(
    settings: TrainingSettings,
    dataset: Path,
    uri: str,
    *,
    stop_when: Callable[[str], bool] | None = None,
    by: signal.Signals = signal.SIGKILL,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Trains in processes of its own.

    Args:
        settings: hyperparameters.
        dataset: the dataset.
        uri: where checkpoints go.
        stop_when: given each line of output; once it is true, the training is stopped.
        by: SIGKILL goes to all processes, any other signal to the first one.
        environment: further variables.
    """
    command = [sys.executable, "-u", "-c", TRAIN, json.dumps(asdict(settings)), str(dataset), uri]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(environment or {})}
    ) as process:
        lines = []
        assert process.stdout
        for line in process.stdout:
            lines.append(line.rstrip())
            if stop_when and stop_when(line):
                stop_when = None
                _stop(psutil.Process(process.pid), by)
    return Ended(process.returncode, lines)


def _stop(process: psutil.Process, by: signal.Signals) -> None:
    if by != signal.SIGKILL:
        process.send_signal(by)
        return
    for each in [*process.children(recursive=True), process]:
        each.kill()


def tensors(checkpoint: Path) -> dict[str, Any]:
    """The tensors of a checkpoint by name; of sharded ones, the parts by name and place."""
    found = {}
    for file in checkpoint.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            places = json.loads((opened.metadata() or {}).get("DCP_SHARDING_INFO", "{}"))
            for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                offsets = places.get(name, {}).get("saved_offsets", [])
                found[f"{name} from {offsets}" if any(offsets) else name] = opened.get_tensor(name)
    return found


def weights_digest(checkpoint: Path) -> str:
    """Hash of all tensors of a checkpoint, model and optimizer, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors(checkpoint).items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def names(directory: Path) -> list[str]:
    """Names of the checkpoint folders."""
    return sorted(path.name for path in directory.glob("step-*"))


def photos_dataset(folder: Path, image_size: int = 16) -> Path:
    """Prepares a small set of images in a folder and returns the dataset."""
    source = write_photos(folder / "source")
    prepare_data(PrepareSettings(source=str(source), image_size=image_size), folder / "dataset")
    return folder / "dataset"


def entries(directory: Path, name: str) -> list[Any]:
    """The values of one name in `metrics.jsonl`, by step."""
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry[name] for entry in map(json.loads, lines) if name in entry]

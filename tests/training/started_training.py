"""Trainings in processes of their own, stopped or killed on the way, and the tensors they leave behind.

Tests and benchmarks/training/exact_resume.py use the same ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from forked import Forked
from processes import kill_tree
from safetensors import safe_open

from gpu_pipelines.component_interface.step import own_process
from gpu_pipelines.tracking.tracked import Tracked, run_at
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

#: `train` as a program for an interpreter that is started anew, on another machine say.
TRAIN = (
    f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}; "
    "from started_training import train; train()"
)


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
    dataset: Path | str,
    uri: str,
    *,
    stop_when: Callable[[str], bool] | None = None,
    by: signal.Signals = signal.SIGKILL,
    seconds_later: float = 0.0,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Trains in processes of its own.

    Args:
        settings: hyperparameters.
        dataset: a directory or `gs://…`.
        uri: where checkpoints go.
        stop_when: given each line of output; once it is true, the training is stopped.
        by: SIGKILL goes to all processes, any other signal to the first one.
        seconds_later: how long after that it is stopped.
        environment: further variables, of which one may name a tracker.
    """
    job = [json.dumps(asdict(settings)), str(dataset), uri]
    process = Forked(f"{__name__}:train", job, {**os.environ, **(environment or {})}, merged=True)
    lines: list[str] = []
    later: threading.Timer | None = None
    for line in process.stdout:
        lines.append(line.rstrip())
        if stop_when and stop_when(line):
            stop_when = None
            later = threading.Timer(seconds_later, _stop, (psutil.Process(process.pid), by))
            later.start()
    if later is not None:
        later.cancel()
        later.join()
    process.stdout.close()
    return Ended(process.wait(), lines)


def train() -> None:
    """Is the step of `run_training`, in a process of its own."""
    settings, dataset, uri = sys.argv[1:]
    with own_process(), Tracked("none", run_at(uri)) as tracked:
        train_model(TrainingSettings(**json.loads(settings)), dataset, uri, tracked=tracked)


def _stop(process: psutil.Process, by: signal.Signals) -> None:
    # One that has come to its end by itself is not there any more.
    if by == signal.SIGKILL:
        kill_tree(process.pid)
        return
    with suppress(psutil.NoSuchProcess):
        process.send_signal(by)


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

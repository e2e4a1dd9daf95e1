"""Trains a model on all devices of this machine, one process each, with torchrun's own launcher."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint import (
    METRICS,
    complete_checkpoints,
    write_configuration,
)
from gpu_pipelines.artifacts.dataset import Dataset, Manifest
from gpu_pipelines.components.training.local_devices import Devices, local_devices
from gpu_pipelines.components.training.settings import TrainingSettings
from gpu_pipelines.components.training.worker import USER_ERROR
from gpu_pipelines.errors import UserError


@dataclass(frozen=True)
class TrainingSummary:
    """How a training went.

    Attributes:
        task: recipe that was trained.
        devices: where.
        settings: the hyperparameters.
        rows: training rows.
        seconds: duration of this launch, from starting the processes.
        checkpoints: names of the complete checkpoints.
        metrics: entries of `metrics.jsonl`, by step.
    """

    task: str
    devices: Devices
    settings: TrainingSettings
    rows: int
    seconds: float
    checkpoints: list[str]
    metrics: list[dict[str, float]]

    def figures(self) -> dict[str, float]:
        """The numbers to show beside the run. Throughput is the median over the entries."""
        speeds = sorted(entry["samples_per_second"] for entry in self.metrics)
        return {
            "steps": self.metrics[-1]["step"],
            "epochs": self.metrics[-1]["epoch"],
            "final_loss": round(self.metrics[-1]["loss"], 6),
            "samples_per_second": speeds[len(speeds) // 2],
            "seconds": round(self.seconds, 1),
            "processes": self.devices.processes,
            "checkpoints": len(self.checkpoints),
        }


def train_model(settings: TrainingSettings, dataset_directory: Path, directory: Path) -> TrainingSummary:
    """Trains on all local devices and leaves checkpoints and metrics in `directory`.

    Args:
        settings: hyperparameters.
        dataset_directory: the dataset artifact.
        directory: the checkpoint directory; an unfinished run in it is continued.

    Raises:
        UserError: a setting is wrong or does not fit the data or the machine, or the training failed.
    """
    dataset = Dataset(dataset_directory)
    if problems := settings.problems(dataset.manifest.task):
        raise UserError.of_all(problems)

    import torch

    devices = local_devices(torch.cuda.device_count())
    _require_batch_divides(settings, devices)
    directory.mkdir(parents=True, exist_ok=True)
    configuration = {"task": dataset.manifest.task, "settings": asdict(settings), "devices": asdict(devices)}
    write_configuration(directory, configuration)
    _announce(dataset.manifest, settings, devices)
    started = time.monotonic()
    _launch([str(dataset_directory), str(directory), devices.kind], devices)
    return TrainingSummary(
        task=dataset.manifest.task,
        devices=devices,
        settings=settings,
        rows=dataset.manifest.rows("train"),
        seconds=time.monotonic() - started,
        checkpoints=[checkpoint.name for checkpoint in complete_checkpoints(directory)],
        metrics=[json.loads(line) for line in (directory / METRICS).read_text(encoding="utf-8").splitlines()],
    )


def _require_batch_divides(settings: TrainingSettings, devices: Devices) -> None:
    batch, processes = settings.global_batch_size, devices.processes
    if batch % processes:
        lower, upper = batch // processes * processes, -(-batch // processes) * processes
        raise UserError(
            f"global_batch_size is {batch}, which {processes} processes cannot share equally.",
            f"Give {f'{lower} or ' if lower else ''}{upper}.",
        )


def _announce(manifest: Manifest, settings: TrainingSettings, devices: Devices) -> None:
    rows = manifest.rows("train")
    print(
        f"training {settings.model} on {rows:,} rows with {devices.processes} × {devices.kind}: "
        f"{settings.total_steps(rows):,} steps of {settings.global_batch_size}",
        flush=True,
    )


def _launch(arguments: list[str], devices: Devices) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # As many threads as cores in all; torchrun's own default is one for each process.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // devices.processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=devices.processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        rdzv_configs={"timeout": 60},
        run_id="train_model",
        max_restarts=0,
        monitor_interval=0.1,
    )
    worker = ["-u", "-m", "gpu_pipelines.components.training.worker"]
    try:
        elastic_launch(config, sys.executable)(*worker, *arguments)
    except ChildFailedError as error:
        raise _reason(error) from None


def _reason(error: Any) -> UserError:
    rank, failure = error.get_first_failure()
    if failure.message.startswith(USER_ERROR):
        return UserError(failure.message.removeprefix(USER_ERROR))
    return UserError(
        f"Process {rank} of the training ended with {_ending(failure.exitcode)}.", "Its own output is above."
    )


def _ending(exit_code: int) -> str:
    if exit_code == -9:
        return "SIGKILL (often: the machine ran out of memory; try a smaller global_batch_size)"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit status {exit_code}"

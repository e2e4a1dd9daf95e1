"""Trains a model on all devices of this machine, and of others in its cluster, one process each."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_pipelines.artifacts.checkpoint import (
    METRICS,
    complete_checkpoints,
    write_configuration,
)
from gpu_pipelines.artifacts.dataset import Dataset, Manifest
from gpu_pipelines.components.training.cluster import Cluster
from gpu_pipelines.components.training.launch import launch
from gpu_pipelines.components.training.local_devices import Devices, local_devices
from gpu_pipelines.components.training.settings import TrainingSettings
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
    """Trains on all devices of this node and the others of its cluster; leaves checkpoints and metrics in `directory`.

    Args:
        settings: hyperparameters.
        dataset_directory: the dataset artifact.
        directory: the checkpoint directory; an unfinished run in it is continued.

    Raises:
        UserError: a setting is wrong or does not fit the data or the machine, or the training failed.
        Interrupted: the training was told to stop.
    """
    dataset = Dataset(dataset_directory)
    if problems := settings.problems(dataset.manifest.task):
        raise UserError.of_all(problems)

    import torch

    cluster = Cluster.from_environment(os.environ)
    devices = local_devices(torch.cuda.device_count())
    _require_batch_divides(settings, cluster.nodes * devices.processes)
    directory.mkdir(parents=True, exist_ok=True)
    configuration = {"task": dataset.manifest.task, "settings": asdict(settings), "devices": asdict(devices)}
    write_configuration(directory, configuration)
    _announce(dataset.manifest, settings, devices)
    started = time.monotonic()
    launch(
        ["-m", "gpu_pipelines.components.training.worker", str(dataset_directory), str(directory), devices.kind],
        processes=devices.processes,
        cluster=cluster,
    )
    return TrainingSummary(
        task=dataset.manifest.task,
        devices=devices,
        settings=settings,
        rows=dataset.manifest.rows("train"),
        seconds=time.monotonic() - started,
        checkpoints=[checkpoint.name for checkpoint in complete_checkpoints(directory)],
        metrics=[json.loads(line) for line in (directory / METRICS).read_text(encoding="utf-8").splitlines()],
    )


def _require_batch_divides(settings: TrainingSettings, processes: int) -> None:
    batch = settings.global_batch_size
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

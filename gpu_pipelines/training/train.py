"""Trains a model on all devices of one or more machines, one process each, and sums up how it went."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from gpu_pipelines.artifacts.checkpoint import METRICS
from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore, read_metrics
from gpu_pipelines.artifacts.dataset import Manifest
from gpu_pipelines.artifacts.documents import write_document
from gpu_pipelines.artifacts.scratch import scratch_folder
from gpu_pipelines.distributed.launch import launch
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.restarts import MOST_RESTARTS
from gpu_pipelines.errors import IdleError, Interrupted, UserError
from gpu_pipelines.step_environment import RESTARTS
from gpu_pipelines.tracking.facts import Facts, facts_of_dataset
from gpu_pipelines.tracking.train_job_status import progress_told
from gpu_pipelines.training.machine.detached_output import output_may_break
from gpu_pipelines.training.machine.local_devices import Devices, local_devices, require_devices_work
from gpu_pipelines.training.machine.nccl_dumps import dumps_kept
from gpu_pipelines.training.machine.nccl_settings import adopt_nccl_settings
from gpu_pipelines.training.machine.utilization import idleness_of
from gpu_pipelines.training.rows.streaming import GivenData, given_data
from gpu_pipelines.training.settings import PROFILE, TrainingSettings

WORKER = ("-m", "gpu_pipelines.training.worker")


class Follower(Protocol):
    """Follows a training on rank 0, such as a `gpu_pipelines.tracking.tracked.Tracked`."""

    def add(self, facts: Facts) -> None:
        """Is told what is known of the dataset."""
        ...

    def follow(self, folder: Path) -> None:
        """Is told where the log of the training will be."""
        ...


@dataclass(frozen=True)
class TrainingSummary:
    """How a training went.

    Attributes:
        task: recipe that was trained.
        devices: what each node trained on.
        nodes: number of nodes.
        settings: the hyperparameters.
        rows: training rows.
        seconds: duration of this launch, from starting the processes.
        checkpoints: names of the complete checkpoints.
        metrics: entries of `metrics.jsonl` on the training, by step.
        validation: those on val.
        profiles: files of profiled steps.
    """

    task: str
    devices: Devices
    nodes: int
    settings: TrainingSettings
    rows: int
    seconds: float
    checkpoints: list[str]
    metrics: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    profiles: list[str]

    def figures(self) -> dict[str, float]:
        """The numbers to show beside the run. Throughput and the like are medians over the entries."""
        last = self.metrics[-1]
        losses = [entry["val_loss"] for entry in self.validation if entry["val_loss"] is not None]
        stalled = [entry["stalled_seconds"] for entry in self.metrics if "stalled_seconds" in entry]
        return {
            "steps": last["step"],
            "epochs": last["epoch"],
            "final_loss": round(last["loss"], 6),
            **({"lowest_val_loss": round(min(losses), 6)} if losses else {}),
            "samples_per_second": self._median("samples_per_second"),
            "memory_gb": max(entry["memory_gb"] for entry in self.metrics),
            "data_loading_share": self._median("data_loading_share"),
            **({"stalled_seconds": round(sum(stalled), 1)} if stalled else {}),
            **({"mfu": self._median("mfu")} if "mfu" in last else {}),
            "seconds": round(self.seconds, 1),
            "processes": self.devices.processes * self.nodes,
            "checkpoints": len(self.checkpoints),
        }

    def _median(self, name: str) -> float:
        values = sorted(entry[name] for entry in self.metrics if name in entry)
        return values[len(values) // 2]


def train_model(
    settings: TrainingSettings,
    dataset: Path | str,
    checkpoint_uri: str,
    cluster: Cluster | None = None,
    tracked: Follower | None = None,
    until: int = 0,
) -> TrainingSummary | None:
    """Trains on all devices of all nodes and leaves checkpoints and metrics at `checkpoint_uri`.

    Args:
        settings: hyperparameters.
        dataset: the dataset artifact: a directory or `gs://…`.
        checkpoint_uri: a directory or `gs://…`; an unfinished training there is continued.
        cluster: the nodes; left out, what the environment says.
        tracked: is told of the data, and follows the training; None where nothing is tracked.
        until: step of a checkpoint after which it ends; another call continues to the same bits. 0 for its last step.

    Returns:
        How it went; None on a node that is not rank 0.

    Raises:
        UserError: a setting is wrong or does not fit the data or the machine, or the training failed.
        Interrupted: it was interrupted, and wrote a checkpoint.
    """
    cluster = cluster or Cluster.from_environment(os.environ)
    if cluster.nodes > 1:
        adopt_nccl_settings()
    restarts = _restarts(os.environ)
    devices = _devices()
    if wrong := settings.problems_of_reading():
        raise UserError.of_all(wrong)
    with given_data(settings, str(dataset), checkpoint_uri, devices.processes) as data:
        return _train_on(data, settings, checkpoint_uri, devices, cluster, restarts, tracked, until)


def _restarts(environment: Mapping[str, str]) -> int:
    text = environment.get(RESTARTS, "") or str(MOST_RESTARTS)
    if not (text.isascii() and text.isdigit() and len(text) < 4):
        raise UserError(f"{RESTARTS} is {text!r}.", "Give a whole number, 0 for never.")
    return int(text)


def _train_on(
    data: GivenData,
    asked: TrainingSettings,
    checkpoint_uri: str,
    devices: Devices,
    cluster: Cluster,
    restarts: int,
    tracked: Follower | None,
    until: int,
) -> TrainingSummary | None:
    manifest = data.dataset().manifest
    task, rows = manifest.task, manifest.rows("train")
    settings = _fitting(asked, manifest, data.streaming, devices.processes * cluster.nodes)
    settings.end_of(until, settings.total_steps(rows))
    if cluster.is_rank_0:
        print("".join(f"{line}\n" for line in [*asked.told(settings, task, rows), *data.told()]), end="", flush=True)
        _announce(manifest, settings, devices, cluster)
    started = time.monotonic()
    with scratch_folder("training") as scratch:
        job, staging = scratch / "job.json", scratch / "staging"
        document = {
            "data": data.to_json(),
            "checkpoint_uri": checkpoint_uri,
            "staging": str(staging),
            "devices": asdict(devices),
            "settings": asdict(settings),
            "until": until,
        }
        write_document(job, document)
        _set_up(devices)
        store = CheckpointStore(checkpoint_uri, staging)
        with (
            dumps_kept(store),
            _followed(tracked, manifest, store.directory, cluster),
            output_may_break(),
            _interruption_says_what_is_kept(checkpoint_uri, staging, cluster),
        ):
            idleness = idleness_of(settings.idle_stop, devices, cluster)
            launch(
                [*WORKER, str(job)],
                processes=devices.processes,
                cluster=cluster,
                restarts=restarts,
                idleness=idleness,
            )
        if not cluster.is_rank_0:
            return None
        metrics = read_metrics(store.directory / METRICS)
        return TrainingSummary(
            task=task,
            devices=devices,
            nodes=cluster.nodes,
            settings=settings,
            rows=rows,
            seconds=time.monotonic() - started,
            checkpoints=[checkpoint.name for checkpoint in store.complete()],
            metrics=[entry for entry in metrics if "loss" in entry],
            validation=[entry for entry in metrics if "val_loss" in entry],
            profiles=[f"{checkpoint_uri}/{PROFILE}/{p.name}" for p in sorted((store.directory / PROFILE).glob("*"))],
        )


def _fitting(asked: TrainingSettings, manifest: Manifest, streaming: str, processes: int) -> TrainingSettings:
    """The settings of a training on a dataset, with what was left to the task.

    Args:
        asked: those of the user.
        manifest: that of the dataset.
        streaming: `on` or `off`.
        processes: those of all nodes.

    Raises:
        UserError: they do not fit the task or the processes.
    """
    rows = manifest.rows("train")
    settings = replace(asked.resolved(manifest.task, rows), streaming=streaming)
    if rows < processes:  # whatever the batch size, it is halved to less than one row for each
        raise UserError(
            f"There are {rows:,} rows to train on and {processes} processes, each of which takes a row of a step.",
            "Give more rows, or take an accelerator with fewer GPUs.",
        )
    shares = asked.problems_on(processes) or settings.problems_on(processes)
    if problems := [*asked.problems(manifest.task), *shares]:
        raise UserError.of_all(problems)
    if problems := settings.problems_of_steps(settings.total_steps(rows)):
        raise UserError.of_all(problems)
    return settings


@contextmanager
def _followed(tracked: Follower | None, manifest: Manifest, directory: Path, cluster: Cluster) -> Iterator[None]:
    """Lets the tracker follow what rank 0 writes into a directory, and Kubeflow Trainer where that runs it."""
    if not cluster.is_rank_0:
        yield
        return
    if tracked is not None:
        tracked.add(facts_of_dataset(manifest))
        tracked.follow(directory)
    with progress_told(directory):
        yield


@contextmanager
def _interruption_says_what_is_kept(checkpoint_uri: str, staging: Path, cluster: Cluster) -> Iterator[None]:
    try:
        yield
    except (Interrupted, IdleError) as end:
        if not cluster.is_rank_0:
            raise
        try:
            whole = CheckpointStore(checkpoint_uri, staging).complete()
        except UserError:
            raise end from None
        kept = f"{whole[-1].name} is kept" if whole else "no checkpoint was whole yet"
        if isinstance(end, IdleError):
            raise IdleError(f"{end.problem} {kept[0].upper()}{kept[1:]}.", end.remedy) from None
        raise Interrupted(f"{end.message}; {kept}") from None


def _set_up(devices: Devices) -> None:
    if devices.kind == "cpu":
        _keep_memory()
    else:
        _set_up_gpus()


def _keep_memory() -> None:
    """Lets processes that train on CPUs keep the memory of a step's activations for the next step.

    By default glibc gives it back to the kernel, and each step faults it in again page by page.
    Source: mallopt(3), M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD, the latter at its largest.
    """
    for name, size in (("TRIM_THRESHOLD", 1 << 40), ("TOP_PAD", 64 << 20), ("MMAP_THRESHOLD", 32 << 20)):
        os.environ.setdefault(f"MALLOC_{name}_", str(size))


def _set_up_gpus() -> None:
    """What PyTorch is told of GPUs before it starts, where the user has not told it something else.

    Segments that grow leave less of the memory in pieces that nothing fits in. Source: torchtitan's train script.
    """
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


def _devices() -> Devices:
    import torch

    devices = local_devices(torch.cuda.device_count())
    require_devices_work(devices)
    return devices


def _announce(manifest: Manifest, settings: TrainingSettings, devices: Devices, cluster: Cluster) -> None:
    rows = manifest.rows("train")
    where = f"{devices.processes} × {devices.kind}" + (
        f" on each of {cluster.nodes} nodes" if cluster.nodes > 1 else ""
    )
    print(
        f"training {settings.model} on {rows:,} rows with {where}: "
        f"{settings.total_steps(rows):,} steps of {settings.global_batch_size}",
        flush=True,
    )

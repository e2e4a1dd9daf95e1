"""Small datasets for trainings, and what the trainings leave behind."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_photos
from forked import Forked

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.distributed.signals import ENDING
from gpu_pipelines.training.settings import TrainingSettings


def names(directory: Path) -> list[str]:
    """Names of the checkpoint folders."""
    return sorted(path.name for path in directory.glob("step-*"))


def photos_dataset(folder: Path, image_size: int = 16) -> Path:
    """Prepares a small set of images in a folder and returns the dataset."""
    source = write_photos(folder / "source")
    prepare_data(PrepareSettings(source=str(source), image_size=image_size), folder / "dataset")
    return folder / "dataset"


def numbers_dataset(folder: Path, rows: int = 200) -> Path:
    """Prepares a table of numbers in a folder and returns the dataset. Its models do without transformers' import."""
    generator = np.random.default_rng(0)
    lines = [f"{a},{b},{3 * a - b}" for a, b in generator.normal(size=(rows, 2)).round(3)]
    (folder / "numbers.csv").write_text("\n".join(["a,b,label", *lines]) + "\n")
    prepare_data(PrepareSettings(task="regression", source=str(folder / "numbers.csv")), folder / "dataset")
    return folder / "dataset"


def entries(directory: Path, name: str) -> list[Any]:
    """The values of one name in `metrics.jsonl`, by step."""
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry[name] for entry in map(json.loads, lines) if name in entry]


def losses_by_placement(settings: TrainingSettings, dataset: Path, folder: Path) -> list[list[float]]:
    """Those of every step of a training by two processes, with a whole model in each and with shards of it."""
    for parallelism in ("ddp", "fsdp"):
        train_on((1, 2), replace(settings, parallelism=parallelism), dataset, str(folder / parallelism))
    return [entries(folder / parallelism, "loss") for parallelism in ("ddp", "fsdp")]


def train_here(settings: TrainingSettings, dataset: Path | str, uri: str, until: int = 0) -> bool:
    """Trains in this process alone, without the launcher: in a tenth of the time.

    Args:
        settings: hyperparameters.
        dataset: a directory or `gs://…`.
        uri: where checkpoints go.
        until: step after which it ends; 0 for its last one.

    Returns:
        Whether it came to its end.
    """
    import torch.distributed as dist

    with signals_kept():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            with tempfile.TemporaryDirectory() as staging, pytest.MonkeyPatch.context() as patch:
                patch.setenv("LOCAL_RANK", "0")
                return _train_in_group(settings, dataset, uri, Path(staging), until)
        finally:
            dist.destroy_process_group()


@contextmanager
def signals_kept() -> Iterator[None]:
    """Restores how this process answers signals, which a training takes for good."""
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train_on(
    shape: tuple[int, int], settings: TrainingSettings, dataset: Path | str, uri: str, before: str = ""
) -> list[str]:
    """Trains in processes without the launcher, as nodes would whose disks are their own.

    They are forked by a process that does nothing else: forked by this one, they would wait for threads that it has.

    Args:
        shape: nodes, and processes of each.
        settings: hyperparameters.
        dataset: a directory or `gs://…`.
        uri: where checkpoints go.
        before: what each process calls with `uri` before it trains, as `module:function`; empty for nothing.

    Returns:
        What the processes of each node have printed; only with `gs://` has a node files of its own.

    Raises:
        AssertionError: one did not come to its end.
    """
    with tempfile.TemporaryDirectory() as scratch:
        job = json.dumps([shape, asdict(settings), str(dataset), uri, scratch, before])
        process = Forked(f"{__name__}:fork", [job], os.environ, merged=True)
        printed, _ = process.communicate()
        logs = [
            "".join(path.read_text() for path in sorted(Path(scratch).glob(f"{node}-*.log")))
            for node in range(shape[0])
        ]
    assert process.returncode == 0, printed + "".join(logs)
    return logs


def fork() -> None:
    """Forks the processes of `train_on`, and waits for them."""
    import torch.multiprocessing as mp

    import gpu_pipelines.training.engine  # noqa: F401 (once, and not in each process)

    shape, settings, dataset, uri, scratch, before = json.loads(sys.argv[1])
    if Path(dataset).is_dir() and Dataset(Path(dataset)).manifest.task != "regression":
        import transformers.modeling_utils  # noqa: F401 (half of what such a process takes to start)
    arguments = (shape, TrainingSettings(**settings), dataset, uri, Path(scratch), before)
    mp.start_processes(_in_process, arguments, nprocs=shape[0] * shape[1], start_method="fork")


def _in_process(
    rank: int, shape: tuple[int, int], settings: TrainingSettings, dataset: str, uri: str, scratch: Path, before: str
) -> None:
    import torch
    import torch.distributed as dist

    nodes, per_node = shape
    node, local_rank = divmod(rank, per_node)
    world = nodes * per_node
    log = os.open(scratch / f"{node}-{local_rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    torch.set_num_threads(1)
    numbers = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": per_node}
    os.environ |= {name: str(value) for name, value in {**numbers, "GROUP_RANK": node}.items()}
    store = dist.FileStore(str(scratch / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    if before:
        module, _, function = before.partition(":")
        getattr(import_module(module), function)(uri)
    assert _train_in_group(settings, dataset, uri, scratch / f"staging-{node}")
    dist.destroy_process_group()


def _train_in_group(settings: TrainingSettings, dataset: Path | str, uri: str, staging: Path, until: int = 0) -> bool:
    import torch

    from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
    from gpu_pipelines.tasks.building import load_recipe
    from gpu_pipelines.training.engine import Trainer
    from gpu_pipelines.training.machine.local_devices import Devices
    from gpu_pipelines.training.rows.streaming import given_data

    with given_data(settings, str(dataset), uri) as given:
        data, settings = given.dataset(), replace(settings, streaming=given.streaming)
        settings = settings.resolved(data.manifest.task, data.manifest.rows("train"))
        recipe = load_recipe(settings.recipe, data.manifest.task).for_dataset(data)
        store = CheckpointStore(uri, staging)
        here = Devices("cpu", 1), torch.device("cpu")
        return Trainer(recipe, data, settings, store, *here, until=until).train()

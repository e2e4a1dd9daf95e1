"""Small datasets for trainings, and what the trainings leave behind."""

from __future__ import annotations

import json
import signal
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_photos

from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
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


def train_here(settings: TrainingSettings, dataset: Path | str, uri: str) -> bool:
    """Trains in this process alone, without the launcher: in a tenth of the time.

    Args:
        settings: hyperparameters.
        dataset: a directory or `gs://…`.
        uri: where checkpoints go.

    Returns:
        Whether it came to its end.
    """
    import torch
    import torch.distributed as dist

    from gpu_pipelines.artifacts.checkpoint_store import CheckpointStore
    from gpu_pipelines.tasks.building import load_recipe
    from gpu_pipelines.training.engine import Trainer
    from gpu_pipelines.training.local_devices import Devices
    from gpu_pipelines.training.streaming import given_data

    reading = ExitStack()
    given = reading.enter_context(given_data(settings, str(dataset), uri))
    data, settings = given.dataset(), replace(settings, streaming=given.streaming)
    settings = settings.resolved(data.manifest.task, data.manifest.rows("train"))
    recipe = load_recipe(settings.recipe, data.manifest.task).for_dataset(data)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with tempfile.TemporaryDirectory() as staging, pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOCAL_RANK", "0")
            store = CheckpointStore(uri, Path(staging))
            trainer = Trainer(recipe, data, settings, store, Devices("cpu", 1), torch.device("cpu"))
            return trainer.train()
    finally:
        reading.close()
        dist.destroy_process_group()
        for number, handler in before.items():
            signal.signal(number, handler)

"""Small datasets for trainings, and what the trainings leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from conftest import write_photos

from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings


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

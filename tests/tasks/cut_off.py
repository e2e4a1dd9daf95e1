"""A training that is cut off while it writes its last checkpoint, and continued."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model


def require_same_bits(settings: TrainingSettings, dataset: Path, trained: Path, last: str, scratch: Path) -> None:
    """Continues a copy of a training whose last checkpoint has no marker, and compares what it ends with.

    Args:
        settings: it was trained with.
        dataset: it was trained on.
        trained: its checkpoints.
        last: name of the last one.
        scratch: an empty folder.
    """
    cut = scratch / "cut"
    shutil.copytree(trained, cut)
    (cut / last / "checkpoint.json").unlink()
    train_model(settings, dataset, str(cut))
    whole, again = (
        {name: each for file in sorted(folder.glob("*.safetensors")) for name, each in load_file(file).items()}
        for folder in (trained / last, cut / last)
    )
    assert set(whole) == set(again)
    assert all(torch.equal(whole[name], again[name]) for name in whole)

"""The mean of the weights of several checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from gpu_pipelines.artifacts.copied_checkpoints import with_weights
from gpu_pipelines.tasks.checkpoint_state import load_weights, save_state, trained_weights


def write_average(model: nn.Module, checkpoints: Sequence[Path], path: Path) -> None:
    """Writes the mean of the weights of checkpoints as a checkpoint.

    Source: Izmailov et al. 2018, https://arxiv.org/abs/1803.05407, for the last checkpoints of one training.

    What is not a floating-point number, such as how many batches a running mean has seen, is taken from the last.

    Args:
        model: of the training; its weights are overwritten.
        checkpoints: their folders, oldest first.
        path: the folder to create and write.
    """
    weights = {name: value.detach() for name, value in trained_weights(model).items()}
    # In double precision the order of the checkpoints leaves no trace. Of eight billion weights that is 64 GB, beside
    # which there is to be no second copy of all.
    sums = {
        name: torch.zeros(value.shape, dtype=torch.float64)
        for name, value in weights.items()
        if value.is_floating_point()
    }
    for checkpoint in checkpoints:
        with with_weights(checkpoint):
            load_weights(model, checkpoint)
        for name, total in sums.items():
            total += weights[name].cpu()
    for name in list(sums):
        weights[name].copy_(sums.pop(name).div_(len(checkpoints)))
    path.mkdir(parents=True)
    save_state({"model": {name: value.to("cpu", copy=True) for name, value in weights.items()}}, path)

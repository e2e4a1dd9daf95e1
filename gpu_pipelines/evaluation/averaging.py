"""The mean of the weights of several checkpoints, as one more candidate.

Source: Izmailov et al. 2018, https://arxiv.org/abs/1803.05407, for the last checkpoints of one training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from gpu_pipelines.tasks.checkpoint_state import load_weights, save_state, trained_weights


def write_average(model: nn.Module, checkpoints: Sequence[Path], path: Path) -> None:
    """Writes the mean of checkpoints as a checkpoint.

    What is not a floating-point number, such as how many batches a running mean has seen, is taken from the last.

    Args:
        model: of the training; its weights are overwritten.
        checkpoints: their folders, oldest first.
        path: the folder to write; made here.
    """
    sums: dict[str, torch.Tensor] = {}
    for checkpoint in checkpoints:
        load_weights(model, checkpoint)
        for name, value in trained_weights(model).items():
            # In double precision the order of the checkpoints leaves no trace.
            if value.is_floating_point():
                sums[name] = sums.get(name, 0) + value.detach().to("cpu", torch.float64)
    means = {
        name: (sums[name] / len(checkpoints)).to(value.dtype) if name in sums else value.detach().cpu().clone()
        for name, value in trained_weights(model).items()
    }
    path.mkdir(parents=True)
    save_state({"model": means}, path)

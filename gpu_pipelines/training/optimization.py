"""The optimizer and its learning rate."""

from __future__ import annotations

import math

import torch
from torch import nn

from gpu_pipelines.training.settings import TrainingSettings


def schedule(kind: str, step: int, total: int, warmup: int) -> float:
    """Share of the peak learning rate at `step` (from 0): a linear warm-up, then down to 0, or constant.

    Source of the cosine: Loshchilov and Hutter, SGDR, https://arxiv.org/abs/1608.03983, equation 5.

    Args:
        kind: cosine, linear or constant.
        step: steps taken.
        total: steps in all.
        warmup: steps of warm-up, at most a tenth of all.
    """
    warmup = min(warmup, max(1, total // 10))
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, total - warmup)
    return {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}[kind]


def make_optimizer(model: nn.Module, settings: TrainingSettings) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter, https://arxiv.org/abs/1711.05101) on what is trained, fused into one kernel.

    Args:
        model: its weights are where they are trained.
        settings: learning rate and weight decay.
    """
    # Norm scales and biases are not decayed, as in every published recipe of these architectures.
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)

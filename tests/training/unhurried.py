"""A recipe whose steps take their time, so that a training can be killed between two of them."""

from __future__ import annotations

import time

import torch
from torch import nn

from gpu_pipelines.tasks.recipe import Batch
from gpu_pipelines.tasks.regression.recipe import Regression


class Unhurried(Regression):
    """Regression, with 20 steps in a second at most."""

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The recipe's own."""
        time.sleep(0.05)
        return super().loss(model, batch)

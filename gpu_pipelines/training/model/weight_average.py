"""An exponential moving average of the weights, beside those that are trained."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from gpu_pipelines.tasks.checkpoint_state import trained_weights, without_wrappers


class WeightAverage:
    """Follows the weights and running statistics of a model, each process those that it holds.

    Sources: Polyak and Juditsky 1992, https://doi.org/10.1137/0330046; of the smaller decay of the first steps,
    TensorFlow's ExponentialMovingAverage with `num_updates`.

    Args:
        model: placed on the processes; what is frozen is left out, as of a checkpoint.
        decay: what stays of the average at each step, less than 1.

    Attributes:
        tensors: the average, by the names of the weights; the same tensors always.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay = model, decay
        weights = {name: weight.detach() for name, weight in trained_weights(model).items()}
        self.tensors = {name: weight.clone() for name, weight in weights.items()}
        # The tensors in use stay the same ones, so that they are listed once.
        pairs = [(_local(self.tensors[name]), _local(weight)) for name, weight in weights.items()]
        self._followed = [pair for pair in pairs if pair[0].is_floating_point()]
        self._copied = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """Takes in the weights after a step.

        Args:
            steps: taken before this one.
        """
        stays = min(self._decay, (1 + steps) / (10 + steps))
        for average, now in self._copied:  # such as how many batches a running mean has seen
            average.copy_(now)
        averages, weights = zip(*self._followed, strict=True)
        torch._foreach_lerp_(averages, weights, 1 - stays)

    def take_statistics_of_rank_0(self) -> None:
        """Makes the averages of running statistics, as of BatchNorm, the same everywhere."""
        for name, _ in self._model.named_buffers():
            if (name := without_wrappers(name)) in self.tensors:
                dist.broadcast(self.tensors[name], src=0)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

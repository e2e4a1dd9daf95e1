"""Data parallelism for small models on CPUs: one exchange, one norm and one update for all weights together.

DDP, clipping and the optimizer each do something for every single weight. Where the operations of a model take
microseconds, that is a tenth of a step. Here weights, gradients and moments lie in one tensor each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.adamw import adamw

#: Bytes of DDP's default bucket. More than that is better exchanged while gradients are still being computed.
LARGEST = 25 << 20


def can_be_flat(model: nn.Module, device: torch.device) -> bool:
    """Whether `FlatAdamW` can take the place of DDP: small, on CPUs, in fp32, and nothing but weights to keep alike."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    weights = dict(model.named_parameters(remove_duplicate=False))
    return (
        device.type == "cpu"
        and all(parameter.dtype == torch.float32 for parameter in trained)
        and 4 * sum(parameter.numel() for parameter in trained) <= LARGEST
        and model.state_dict().keys() == weights.keys()
    )


class FlatAdamW(torch.optim.AdamW):
    """AdamW that exchanges and clips its gradients itself.

    Its state has the names and values of `torch.optim.AdamW`, so that either continues from a checkpoint of the other;
    it is to be read over in place, because every tensor in it is a part of a larger one.

    Args:
        groups: parameters in fp32 on the CPU, with their options; their data moves into one tensor, and all processes
            get that of the first.
        lr: learning rate.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float) -> None:
        super().__init__(groups, lr=lr, fused=True)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self._parameters = parameters
        self._weights = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        dist.broadcast(self._weights, src=0)
        self._gradients, self._means, self._squares = (torch.zeros_like(self._weights) for _ in range(3))
        self._steps = [torch.zeros(()) for _ in self.param_groups]
        self._sizes = [sum(parameter.numel() for parameter in group["params"]) for group in self.param_groups]
        steps = [step for step, group in zip(self._steps, self.param_groups, strict=True) for _ in group["params"]]
        sizes = [parameter.numel() for parameter in parameters]
        parts = zip(self._weights.split(sizes), self._means.split(sizes), self._squares.split(sizes), strict=True)
        for parameter, step, (weight, mean, square) in zip(parameters, steps, parts, strict=True):
            parameter.data = weight.view_as(parameter)
            moments = {"exp_avg": mean.view_as(parameter), "exp_avg_sq": square.view_as(parameter)}
            self.state[parameter] = {"step": step, **moments}

    def exchange(self, largest_norm: float, meanwhile: Callable[[], None]) -> None:
        """Takes the gradients from the parameters, and of all processes the mean, clipped as `clip_grad_norm_` does.

        Args:
            largest_norm: of all gradients together; 0 for no limit.
            meanwhile: called while the gradients are under way.
        """
        torch.cat([parameter.grad.reshape(-1) for parameter in self._parameters], out=self._gradients)
        exchange = dist.all_reduce(self._gradients, async_op=True)
        for parameter in self._parameters:
            parameter.grad = None
        meanwhile()
        exchange.wait()
        share = 1 / dist.get_world_size()
        if largest_norm:
            norm = torch.linalg.vector_norm(self._gradients).item() * share
            share *= min(1.0, largest_norm / (norm + 1e-6))
        self._gradients *= share

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Takes a step with the gradients that were last exchanged."""
        del closure
        parts = [whole.split(self._sizes) for whole in (self._weights, self._gradients, self._means, self._squares)]
        for group, step, *tensors in zip(self.param_groups, self._steps, *parts, strict=True):
            weights, gradients, means, squares = ([tensor] for tensor in tensors)
            options = {name: group[name] for name in ("lr", "weight_decay", "eps", "amsgrad", "maximize")}
            beta1, beta2 = group["betas"]
            adamw(weights, gradients, means, squares, [], [step], fused=True, beta1=beta1, beta2=beta2, **options)

"""The gradients of a step: whether all are there, their norm, and how they are clipped.

DDP sums gradients in buckets, of which they are parts. In a bucket, the place of a gradient is the order in which it is
added up, by the processes and in the norm: all-reduce begins each part of a bucket at another process. DDP puts the
gradients into other buckets after its first backward pass, when it has seen in which order they come. A training that
continues would begin with the first buckets again, where one that was never interrupted has the second ones, and would
differ from it in the last bit. So the buckets are settled before the first step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.tasks.checkpoint_state import without_wrappers

#: Keeps the division below from a norm of 0. Source: torch.nn.utils.clip_grads_with_norm_.
_SMALL = 1e-6


class Gradients:
    """Those of the weights that are trained.

    Args:
        model: placed on the processes.
        parallel: what its forward pass is called on.
    """

    def __init__(self, model: nn.Module, parallel: nn.Module) -> None:
        self._model, self._parallel = model, parallel
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]

    def settle_buckets(self, loss: Callable[[], torch.Tensor]) -> None:
        """Shows DDP the order of the gradients by a backward pass that leaves nothing else behind.

        Args:
            loss: of any batch, through `parallel`; not called where that is not DDP's.

        Raises:
            UserError: as `all` does.
        """
        parallel = self._parallel
        if not isinstance(parallel, DistributedDataParallel):
            return
        was_training = parallel.training
        before = [(buffer, buffer.clone()) for buffer in parallel.buffers()]
        parallel.train()
        loss().backward()
        self.all()
        parallel.zero_grad()
        parallel.train(was_training)
        with torch.no_grad():
            for buffer, content in before:
                buffer.copy_(content)

    def all(self) -> list[torch.Tensor]:
        """Those of the last backward pass.

        Raises:
            UserError: the loss does not depend on a weight, which DDP does not allow.
        """
        found = [weight.grad for weight in self._weights if weight.grad is not None]
        if len(found) == len(self._weights) or not isinstance(self._parallel, DistributedDataParallel):
            return found
        named = self._model.named_parameters()
        without = [without_wrappers(name) for name, weight in named if weight.requires_grad and weight.grad is None]
        raise UserError(
            f"These weights got no gradient, because the loss does not depend on them: {some_of(without, most=3)}.",
            # Beside adapters nothing else can be frozen.
            "Train it with lora_rank=0."
            if any(".lora_" in name for name in without)
            else f"Leave them as they are: -p freeze={','.join(without)}",
        )

    def clip(self, most: float) -> torch.Tensor:
        """Scales all of them down together, where their norm is larger.

        Args:
            most: the largest norm; 0 for any.

        Returns:
            The norm that they had; 0-d, on their device.

        Raises:
            UserError: as `all` does.
        """
        gradients = self.all()
        buckets = _buckets_of(gradients) if isinstance(self._parallel, DistributedDataParallel) else []
        norm = nn.utils.get_total_norm(buckets or gradients)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        if most and buckets:
            torch._foreach_mul_(buckets, (most / (norm + _SMALL)).clamp(max=1.0))
        elif most:
            nn.utils.clip_grads_with_norm_(self._weights, most, norm)
        return norm


def _buckets_of(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """The memory that gradients are parts of, as tensors of one dimension; none where there is more in it than they.

    A few large operations take less time than one for each weight: of a small model on CPUs a fortieth of a step.
    """
    parts = {gradient.untyped_storage().data_ptr(): gradient for gradient in gradients}.values()
    buckets = [part.as_strided((part.untyped_storage().nbytes() // part.element_size(),), (1,), 0) for part in parts]
    together = sum(map(torch.numel, gradients))
    return buckets if sum(map(torch.numel, buckets)) == together else []

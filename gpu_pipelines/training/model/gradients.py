"""The gradients of a step: whether all are there, their norm, and how they are clipped.

DDP sums gradients in buckets, of which they are parts. In a bucket, the place of a gradient is the order in which it is
added up, by the processes and in the norm: all-reduce begins each part of a bucket at another process. DDP puts the
gradients into other buckets after its first backward pass, when it has seen in which order they come. A training that
continues would begin with the first buckets again, where one that was never interrupted has the second ones, and would
differ from it in the last bit. So the buckets are settled before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.tasks.checkpoint_state import without_wrappers
from gpu_pipelines.training.model.parallelism import replicated

#: Keeps the division below from a norm of 0. Source: torch.nn.utils.clip_grads_with_norm_.
_SMALL = 1e-6


class Gradients:
    """The gradients of the trained weights.

    Args:
        model: placed on the processes.
        parallel: the module to call for its forward pass.

    Attributes:
        parallel: the module to call from now on.
    """

    def __init__(self, model: nn.Module, parallel: nn.Module) -> None:
        self._model, self.parallel = model, parallel
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        #: Whether the loss may not depend on some weights, as DDP is told.
        self._may_lack = not isinstance(parallel, DistributedDataParallel)
        self._has_told = False

    def settle_buckets(self, loss: Callable[[], torch.Tensor]) -> None:
        """Shows DDP the order of the gradients with a backward pass that has no other effect.

        If the loss does not depend on some weights, DDP looks for them from then on, which takes time in each step.

        Args:
            loss: of any batch, through `parallel`; not called if that is not DDP's.
        """
        if self._may_lack:
            return
        was_training = self.parallel.training
        before = [(buffer, buffer.clone()) for buffer in self.parallel.buffers()]
        self.parallel.train()
        loss().backward()
        lacks = torch.tensor(float(bool(self._without())), device=self._weights[0].device)
        dist.all_reduce(lacks)
        if lacks.item():
            self._may_lack = True
            self.parallel = nn.Identity()  # only one DDP at a time may wait for the gradients of a model
            self.parallel = replicated(self._model, may_lack=True)
        self.parallel.zero_grad()
        self.parallel.train(was_training)
        with torch.no_grad():
            for buffer, content in before:
                buffer.copy_(content)

    def _without(self) -> list[str]:
        """Names of weights that are trained and got no gradient."""
        named = self._model.named_parameters()
        return [without_wrappers(name) for name, weight in named if weight.requires_grad and weight.grad is None]

    def all(self) -> list[torch.Tensor]:
        """The gradients of the last backward pass; zeros for a weight that the loss does not depend on.

        So the optimizer has a state for each weight, which a training that continues needs.

        Raises:
            UserError: the loss does not depend on a weight, and did before, which DDP does not allow.
        """
        found = [weight.grad for weight in self._weights if weight.grad is not None]
        if len(found) == len(self._weights):
            return found
        without = some_of(self._without(), most=3)
        if not self._may_lack:
            raise UserError(
                f"These weights got no gradient, because the loss of this step does not depend on them: {without}.",
                "Let it depend on the same weights in each step, such as by 0 times their sum.",
            )
        if not self._has_told and dist.get_rank() == 0:
            print(f"note: the loss does not depend on {without}, which it cannot train", flush=True)
        self._has_told = True
        for weight in self._weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        return [weight.grad for weight in self._weights if weight.grad is not None]

    def clip(self, most: float) -> torch.Tensor:
        """Scales all gradients down together if their norm is larger.

        Args:
            most: the largest norm; 0 for any.

        Returns:
            Their norm before that; 0-d, on their device.

        Raises:
            UserError: see `all`.
        """
        gradients = self.all()
        buckets = _buckets_of(gradients) if isinstance(self.parallel, DistributedDataParallel) else []
        norm = nn.utils.get_total_norm(buckets or gradients)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        if most and buckets:
            torch._foreach_mul_(buckets, (most / (norm + _SMALL)).clamp(max=1.0))
        elif most:
            nn.utils.clip_grads_with_norm_(self._weights, most, norm)
        return norm


def unscale(scaler: torch.amp.GradScaler, optimizers: Sequence[Optimizer]) -> None:
    """Divides gradients by what a loss was multiplied with; where some are no numbers, all optimizers miss the step.

    By itself a scaler has each go by its own gradients: one would take a step by what those of another, which are no
    numbers, have made of its own when all were clipped together.

    Args:
        scaler: of the loss; does nothing where it is not enabled.
        optimizers: all of the model.
    """
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    if scaler.is_enabled() and len(optimizers) > 1:
        found = [each for optimizer in optimizers for each in scaler._found_inf_per_device(optimizer).values()]
        any_of_all = torch.stack(found).amax()
        for each in found:
            each.copy_(any_of_all)


def _buckets_of(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """The memory that gradients are parts of, as tensors of one dimension; none where there is more in it than they.

    A few large operations take less time than one for each weight: of a small model on CPUs a fortieth of a step.
    """
    parts = {gradient.untyped_storage().data_ptr(): gradient for gradient in gradients}.values()
    buckets = [part.as_strided((part.untyped_storage().nbytes() // part.element_size(),), (1,), 0) for part in parts]
    together = sum(map(torch.numel, gradients))
    return buckets if sum(map(torch.numel, buckets)) == together else []

"""The losses of a language model's tokens without the logits of all of them, which would be the most that a step holds.

The head of the model is called as ever, so that DDP and FSDP2 do with its weights what they always do; but it gives a
loss for each token instead of its logits. It makes logits for a few tokens, takes what is wanted of them, and forgets
them; the backward pass makes them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.nn import functional

from gpu_pipelines.accelerators.memory_estimate import LOGITS_AT_ONCE
from gpu_pipelines.tasks.text_recipe import NOT_SCORED

#: Heads of models that do something with logits before they give them, such as a soft cap.
_NOT_LAST: WeakSet[nn.Module] = WeakSet()


@dataclass
class Scored:
    """The result of a forward pass that computes losses instead of logits.

    Attributes:
        outputs: of the model; their logits must not be used.
        losses: of each token, in nats, 0 if it is not scored; or their sum.
        right: whether the scored token is the most likely one for the model; None if not requested.
    """

    outputs: Any = None
    losses: Any = None
    right: Any = None

    def mean(self, targets: torch.Tensor) -> torch.Tensor:
        """The mean of the losses over the scored tokens; 0 if there are none."""
        return self.losses.sum() / (targets != NOT_SCORED).sum().clamp(min=1)


def in_chunks(
    model: nn.Module,
    forward: Callable[[], Any],
    targets: torch.Tensor,
    smoothing: float = 0.0,
    *,
    tells: bool = False,
    each: bool = False,
) -> Scored | None:
    """Runs a forward pass in which the head returns losses; None if all logits are to be made at once.

    They are where they are few, and of a model that has no linear head or changes what the head gives.

    Args:
        model: a transformers model, maybe in a wrapper.
        forward: calls the model, and returns its outputs.
        targets: the token to predict at each place, -100 if it is not scored; of shape (rows, tokens).
        smoothing: share of each target that is spread over all words.
        tells: whether to return which tokens were predicted right.
        each: whether the loss of each token is wanted, and not only their sum.
    """
    head = _head(model)
    if head is None or head in _NOT_LAST or targets.numel() * head.out_features <= LOGITS_AT_ONCE:
        return None
    scored = Scored()
    with _giving_losses(head, scored, targets, smoothing, tells, each):
        scored.outputs = forward()
    if scored.losses is not None and scored.outputs.logits is scored.losses:
        return scored
    _NOT_LAST.add(head)
    return None


def _head(model: nn.Module) -> nn.Linear | None:
    """The layer that makes logits, where it is linear."""
    find: Any = getattr(getattr(model, "module", model), "get_output_embeddings", None)
    head = find() if find else None
    return head if isinstance(head, nn.Linear) else None


@contextmanager
def _giving_losses(
    head: nn.Linear, scored: Scored, targets: torch.Tensor, smoothing: float, tells: bool, each: bool
) -> Iterator[None]:
    """While this lasts, the head gives losses in place of logits, and puts them into `scored` as well."""

    def losses(hidden: torch.Tensor) -> torch.Tensor:
        if hidden.shape[:-1] != targets.shape:  # the model does not give one for each token
            return functional.linear(hidden, head.weight, head.bias)
        device = hidden.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        only_sum = not (tells or each) and torch.is_grad_enabled()
        if kind == torch.bfloat16 and only_sum and _has_liger(hidden.device):
            scored.losses = _by_liger(hidden.to(kind), head.weight.to(kind), head.bias, targets, smoothing)
            return scored.losses
        found, right = _ChunkedLosses.apply(hidden, head.weight, head.bias, targets, smoothing, kind, tells)
        scored.losses, scored.right = found, right if tells else None
        return found

    head.forward = losses  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del head.forward


class _ChunkedLosses(torch.autograd.Function):
    """Cross entropy of a linear layer's outputs, a few rows at a time.

    Of the forward pass it keeps one number for each token, the logarithm of the sum of the exponentials.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        smoothing: float,
        kind: torch.dtype,
        tells: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, wanted = hidden.flatten(0, -2), targets.flatten()
        # Tensors of their own, and no views of others: of a view, FSDP2 warns.
        given = torch.empty(targets.shape, dtype=torch.float32, device=hidden.device)
        told = torch.empty(targets.shape if tells else (0,), dtype=torch.bool, device=hidden.device)
        losses, right, norms = given.view(-1), told.view(-1), torch.empty_like(given).view(-1)
        matrix = weight.to(kind)
        for part in _parts(len(rows), len(weight)):
            logits = _logits(rows[part], matrix, bias)
            norms[part] = logits.logsumexp(dim=-1)
            own = logits.gather(1, wanted[part].clamp(min=0)[:, None])[:, 0]
            losses[part] = norms[part] - (1 - smoothing) * own
            if smoothing:
                losses[part] -= smoothing * logits.mean(dim=-1)
            if tells:
                right[part] = logits.argmax(dim=-1) == wanted[part]
        losses.masked_fill_(wanted == NOT_SCORED, 0.0)
        ctx.save_for_backward(hidden, weight, bias, targets, norms)
        ctx.smoothing, ctx.kind = smoothing, kind
        ctx.mark_non_differentiable(told)
        return given, told

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        hidden, weight, bias, targets, norms = ctx.saved_tensors
        rows, wanted = hidden.flatten(0, -2), targets.flatten()
        scales = gradients[0].flatten().masked_fill(wanted == NOT_SCORED, 0.0)
        matrix = weight.to(ctx.kind)
        of_rows, of_weight, of_bias = torch.empty_like(rows), None, None
        if ctx.needs_input_grad[1]:
            of_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        if bias is not None and ctx.needs_input_grad[2]:
            of_bias = torch.zeros(bias.shape, dtype=torch.float32, device=weight.device)
        for part in _parts(len(rows), len(weight)):
            slopes = _logits(rows[part], matrix, bias).sub_(norms[part, None]).exp_()
            if ctx.smoothing:
                slopes -= ctx.smoothing / len(weight)
            hit = wanted[part].clamp(min=0)[:, None]
            slopes.scatter_add_(1, hit, slopes.new_full(hit.shape, ctx.smoothing - 1))
            slopes *= scales[part, None]
            if of_bias is not None:
                of_bias += slopes.sum(dim=0)
            slopes = slopes.to(ctx.kind)
            of_rows[part] = slopes @ matrix
            if of_weight is not None:
                of_weight += slopes.t() @ rows[part].to(ctx.kind)
        return (
            of_rows.view_as(hidden),
            None if of_weight is None else of_weight.to(weight.dtype),
            None if of_bias is None else of_bias.to(bias.dtype),
            *4 * (None,),
        )


def _parts(rows: int, words: int) -> list[slice]:
    size = max(1, LOGITS_AT_ONCE // words)
    return [slice(start, start + size) for start in range(0, rows, size)]


def _logits(rows: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Logits in fp32, of what was multiplied in the type of the matrix."""
    with torch.autocast(rows.device.type, enabled=False):
        return functional.linear(rows.to(matrix.dtype), matrix, None if bias is None else bias.to(matrix.dtype)).float()


def _has_liger(device: torch.device) -> bool:
    """Whether the kernels of Liger are installed, and there is a GPU for them."""
    return device.type == "cuda" and find_spec("liger_kernel") is not None


def _by_liger(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor, smoothing: float
) -> torch.Tensor:
    """The sum of the losses, by Liger's kernel, which makes the gradients in the forward pass.

    So it is not for fp16: the scale of the loss would come too late. Source: https://arxiv.org/abs/2410.10989.
    """
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    loss = LigerFusedLinearCrossEntropyLoss(ignore_index=NOT_SCORED, label_smoothing=smoothing, reduction="sum")
    return loss(weight, hidden.flatten(0, -2), targets.flatten(), bias)

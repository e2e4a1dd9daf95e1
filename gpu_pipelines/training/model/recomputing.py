"""Recomputes the activations of layers in the backward pass, all or only the cheap ones, to save memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from gpu_pipelines.errors import UnfitParametersError, UserError

_MATRIX_MULTIPLICATIONS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._grouped_mm.default,
    torch.ops.aten.convolution.default,
}
_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}
#: Those of packed rows and of the package flash-attn, by name: who imports the module of the former imports
#: torch.compile as well, which takes half a second, and the latter may not be there.
_ATTENTION_BY_NAME = frozenset(
    ("torch_attn::_varlen_attn", "flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_varlen_forward")
)


def recompute_activations(model: nn.Module, blocks: list[nn.Module], *, selective: bool = False) -> list[nn.Module]:
    """Makes layers recompute their activations in the backward pass.

    Args:
        model: the model.
        blocks: these layers of it.
        selective: whether the outputs of attention and of every second matrix multiplication are kept, which takes
            memory and saves most of the time. Source: torchtitan's activation checkpointing, `selective op`.

    Returns:
        The layers that replace them.
    """
    how: dict[str, Any] = {"context_fn": _keeping} if selective else {}
    for module in (module for block in blocks for module in block.modules()):
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            _CountedOnce(module)
    wrapped = {id(block): checkpoint_wrapper(block, **how) for block in blocks}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in wrapped and parent is not wrapped[id(child)]:
                parent.register_module(name, wrapped[id(child)])
    return [wrapped[id(block)] for block in blocks]


def not_kept(error: Exception) -> UserError | None:
    """The error for a layer that changes in place what selective recomputation keeps; None for other errors.

    DeBERTa scales its queries like that. Recomputed from the changed tensor, the layer would have other gradients.

    Args:
        error: of a training.
    """
    if "cached during selective activation checkpoint has been mutated" not in str(error):
        return None
    return UnfitParametersError(
        "recompute is selective, and a layer of the model changes in place a tensor that would be kept.",
        "Give recompute=layers.",
    )


class _CountedOnce:
    """Lets a batch norm count a batch among its running statistics once, and not again where its layer is repeated.

    Args:
        norm: part of a layer that is recomputed.
    """

    def __init__(self, norm: _BatchNorm) -> None:
        self._before: tuple[float | None, torch.Tensor | None] | None = None
        norm.register_forward_pre_hook(self._begin)
        norm.register_forward_hook(self._end, always_call=True)

    def _begin(self, norm: Any, _: Any) -> None:
        # Compiled layers change statistics at the end of the forward pass alone.
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
            return  # this is no backward pass
        self._before = norm.momentum, norm.num_batches_tracked
        norm.momentum, norm.num_batches_tracked = 0.0, None  # the share of this batch, and their number

    def _end(self, norm: Any, *_: Any) -> None:
        if self._before is not None:
            (norm.momentum, norm.num_batches_tracked), self._before = self._before, None


def _keeping() -> Any:
    """The contexts of a pass through a layer and of the pass that repeats it."""
    return create_selective_checkpoint_contexts(_Kept())


class _Kept:
    """Which outputs of a pass through a layer are kept.

    The pass that repeats it is asked the same again by PyTorch before 2.13, and has to be told the same.
    """

    def __init__(self) -> None:
        self._multiplications = {False: 0, True: 0}

    def __call__(self, context: Any, operation: Any, *values: Any, **named: Any) -> CheckpointPolicy:
        keeps = False
        if operation in _MATRIX_MULTIPLICATIONS:
            self._multiplications[context.is_recompute] += 1
            keeps = self._multiplications[context.is_recompute] % 2 == 1
        elif operation in _ATTENTION or operation.name() in _ATTENTION_BY_NAME:
            keeps = not _drops(operation, values, named)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def _drops(operation: Any, values: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether it drops out at random: what is not repeated draws no numbers, and those of what follows would differ."""
    places = [argument.name for argument in operation._schema.arguments]
    given = {**dict(zip(places, values, strict=False)), **named}
    return bool(given.get("dropout_p", 0.0))

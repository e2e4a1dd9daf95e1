"""How many bytes of activations a training holds between the forward and the backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpu_pipelines.tasks.recipe import Batch, Recipe


def activation_bytes(recipe: Recipe, model: nn.Module, batch: Batch) -> int:
    """Bytes held at the end of a forward pass, and bytes of the largest layer that is recomputed after it.

    Args:
        recipe: knows how to call the model.
        model: not sharded.
        batch: made by the recipe.
    """
    layers: list[int] = []
    handles = [
        module.register_forward_pre_hook(_noting(layers, model), with_kwargs=True)
        for module in model.modules()
        if isinstance(module, CheckpointWrapper)
    ]
    try:
        with _held(model) as held:
            loss = recipe.loss(model, batch)
            kept = held.bytes - loss.untyped_storage().nbytes()
    finally:
        for handle in handles:
            handle.remove()
    del loss
    return kept + max(layers, default=0)


def _noting(layers: list[int], model: nn.Module) -> Any:
    """A hook that notes what a layer holds while it is recomputed."""

    def note(module: Any, values: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        with _held(model) as held:
            outputs = module._checkpoint_wrapped_module(*values, **named)
            layers.append(held.bytes)
        del outputs

    return note


@contextmanager
def _held(model: nn.Module) -> Iterator[_Held]:
    """Counts what is made and still there, whoever holds it, and what the backward pass will want of what was there."""
    held = _Held(model)

    def note(tensor: torch.Tensor) -> torch.Tensor:
        held.note(tensor)
        return tensor.detach()  # itself, it would hold the operation that holds it, for ever

    with held, torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield held


class _Held(TorchDispatchMode):
    """Memory of tensors that operations have made and that somebody still holds; weights do not count.

    Attributes:
        bytes: of all of them now.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.bytes = 0
        self._known = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def __torch_dispatch__(self, operation: Any, types: Any, values: Any = (), named: Any = None) -> Any:
        made = operation(*values, **(named or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor)
        return made

    def note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self.bytes += storage.nbytes()
            weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())

    def _forget(self, storage: int, size: int) -> None:
        self._known.discard(storage)
        self.bytes -= size

"""Frozen weights are held in the precision that they are multiplied in: nothing is ever added to them."""

from __future__ import annotations

from torch import nn

from gpu_pipelines.accelerators.memory_estimate import BYTES_PER_TRAINED
from gpu_pipelines.training.precision import DTYPES


def hold_frozen(model: nn.Module, precision: str) -> None:
    """Casts the frozen matrices of a model to the precision of its forward pass, in place.

    Autocast makes the same numbers of them for each multiplication, so the product stays the same. The tables of
    embeddings are cast for bf16 alone: the layers add to what they give, and fp16 has not the range for the sum. Norms
    and biases stay in fp32; they take next to nothing.

    Args:
        model: on any device, the meta device too.
        precision: bf16, fp16 or fp32; nothing is done for the latter.
    """
    if precision == "fp32":
        return
    tables = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    for weight in model.parameters():
        is_matrix = weight.ndim >= 2 and weight.is_floating_point() and not weight.requires_grad
        if is_matrix and (precision == "bf16" or id(weight) not in tables):
            weight.data = weight.data.to(DTYPES[precision])


def state_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights, of the gradients of those that are trained, and of what AdamW keeps for them."""
    weights = list(model.parameters())
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    return trained * BYTES_PER_TRAINED + sum(weight.nbytes for weight in weights if not weight.requires_grad)

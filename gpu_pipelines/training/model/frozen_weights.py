"""Frozen weights are kept in the precision of their multiplications, because nothing is ever added to them."""

from __future__ import annotations

import torch
from torch import nn

from gpu_pipelines.accelerators.memory_estimate import BYTES_PER_TRAINED
from gpu_pipelines.training.model.precision import DTYPES


def hold_frozen(model: nn.Module, precision: str) -> None:
    """Casts the frozen matrices of a model to the precision of its forward pass, in place, and the rest to fp32.

    Autocast would make the same numbers for each multiplication, so the product stays the same. The tables of
    embeddings are cast only for bf16: the layers add to their output, and fp16 lacks the range for the sum. Norms
    and biases stay in fp32; they take next to nothing.

    Args:
        model: on any device, including the meta device; some of its weights may be in bf16 already.
        precision: bf16, fp16 or fp32.
    """
    tables = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    for weight in model.parameters():
        if not weight.is_floating_point():
            continue
        is_held = weight.ndim >= 2 and not weight.requires_grad and (precision == "bf16" or id(weight) not in tables)
        weight.data = weight.data.to(DTYPES[precision] if is_held else torch.float32)


def state_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights, and of the gradients and the AdamW state of the trained ones."""
    weights = list(model.parameters())
    trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    return trained * BYTES_PER_TRAINED + sum(weight.nbytes for weight in weights if not weight.requires_grad)

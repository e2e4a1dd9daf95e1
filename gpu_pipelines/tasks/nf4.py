"""Frozen linear layers in four bits (QLoRA): their weights are NF4, and are made whole for each multiplication.

Source: Dettmers et al. 2023, https://arxiv.org/abs/2305.14314. The sixteen numbers and the reverse of quantization are
bitsandbytes'. What is made is held as plain tensors, not as its own kind of parameter: so FSDP2 shards them as it does
any other weight. The scales of the blocks are not quantized again, which would save another 0.4 bits of 4.5 for each
weight.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.errors import UserError
from gpu_pipelines.processors import cores
from gpu_pipelines.tasks.pretrained import is_plain_linear

#: Weights that share a scale, along a row of the matrix.
BLOCK = 64
#: Blocks that a core quantizes at once: 256 KiB in fp32, which stay in its cache.
_BLOCKS_AT_ONCE = 1 << 10
#: Keeps the division below from a block of zeros. Source: bitsandbytes' quantize_4bit.
_SMALL = 1e-38


class Nf4Linear(nn.Module):
    """A linear layer whose frozen weight is in four bits.

    Args:
        linear: its width is a multiple of `BLOCK`; on the meta device, there is nothing in the weights. It may be
            a `Conv1D` of transformers.

    Attributes:
        packed: two weights in each byte, uint8 of shape (outputs, inputs / 2).
        scales: the bits of the fp32 scale of each block, int32, which FSDP2 does not cast; (outputs, inputs / 64).
        weight: None, as there is none. T5 looks for one, to compute in its type.
    """

    weight = None

    def __init__(self, linear: Any) -> None:
        super().__init__()
        matrix = _matrix_of(linear)
        self.out_features, self.in_features = matrix.shape
        packed, scales = _quantized(matrix)
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.bias = linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        device = rows.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else rows.dtype
        product: torch.Tensor = _Product.apply(rows.to(kind), self.packed, self.scales)
        return product if self.bias is None else product + self.bias.to(kind)


class _Product(torch.autograd.Function):
    """Rows times a matrix in four bits, which is made whole in each pass and kept in none."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(packed, scales)
        return rows @ _whole(packed, scales, rows.dtype).t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        packed, scales = ctx.saved_tensors
        return gradients[0] @ _whole(packed, scales, gradients[0].dtype), None, None


def quantize(model: nn.Module) -> None:
    """Puts the frozen linear layers of a model into four bits, in place; the head of a language model stays.

    Args:
        model: with adapters or frozen weights; on the CPU, or on the meta device.

    Raises:
        UserError: it has no such layer, or bitsandbytes is not installed.
    """
    _require_library()
    for name, linear in _layers(model):
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, Nf4Linear(linear))


def round_weights(model: nn.Module) -> None:
    """Gives a plain model, in place, the weights with which it computed while it was quantized.

    So the evaluated and exported model is the trained one. The weights are in fp32.

    Args:
        model: as `quantize` takes it.

    Raises:
        UserError: it has no such layer, or bitsandbytes is not installed.
    """
    _require_library()
    for _, linear in _layers(model):
        matrix = _whole(*_quantized(_matrix_of(linear)), torch.float32)
        linear.weight.data = matrix.t().contiguous() if _lies_other_way(linear) else matrix


def require_layers(model: nn.Module) -> None:
    """Checks that a model, with or without weights, has layers to quantize; raises UserError if not."""
    _layers(model)


def _matrix_of(linear: Any) -> torch.Tensor:
    """The weight of a linear layer, of shape (outputs, inputs)."""
    weight: torch.Tensor = linear.weight.detach()
    return weight.t() if _lies_other_way(linear) else weight


def _lies_other_way(module: nn.Module) -> bool:
    """Whether a module is a linear layer of GPT-2 and its kin, whose weight has the shape (inputs, outputs)."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


def _layers(model: nn.Module) -> list[tuple[str, Any]]:
    """The linear layers that are quantized, by name."""
    find: Any = getattr(model, "get_output_embeddings", None)
    head = find() if find else None
    found: list[tuple[str, Any]] = [
        (name, module)
        for name, module in model.named_modules()
        if (is_plain_linear(module) or _lies_other_way(module))
        and module is not head
        and not module.weight.requires_grad
        and _matrix_of(module).shape[1] % BLOCK == 0
    ]
    if not found:
        raise UserError(
            f"quantize_base is nf4, and {type(model).__name__} has no frozen linear layer whose width is a multiple "
            f"of {BLOCK}.",
            "Leave it empty.",
        )
    return found


def _quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of the nearest levels and the scales, as bitsandbytes' quantize_4bit gives them to the bit.

    On CPUs that searches the levels for each weight, which takes several times as long, while no GPU has anything to
    do. To compare all weights of a part with each bound between two levels is done by vector instructions; and by
    NumPy, whose loops use one core, so that all cores do it side by side.
    """
    rows, width = weight.shape
    if weight.is_meta:
        empty = torch.empty(rows, width // 2, dtype=torch.uint8, device="meta")
        return empty, torch.empty(rows, width // BLOCK, dtype=torch.int32, device="meta")
    blocks: np.ndarray = weight.float().contiguous().view(-1, BLOCK).numpy()
    packed = np.empty((len(blocks), BLOCK // 2), dtype=np.uint8)
    scales = np.empty(len(blocks), dtype=np.float32)
    bounds = _bounds()

    def quantize_part(start: int) -> None:
        part = slice(start, start + _BLOCKS_AT_ONCE)
        scales[part] = np.abs(blocks[part]).max(axis=1)
        scaled = blocks[part] * (np.float32(1) / np.maximum(scales[part], np.float32(_SMALL)))[:, None]
        np.clip(scaled, -1, 1, out=scaled)
        levels = np.zeros(scaled.shape, dtype=np.uint8)
        for bound in bounds:
            levels += scaled > bound
        packed[part] = (levels[:, ::2] << 4) | levels[:, 1::2]

    with ThreadPoolExecutor(cores()) as threads:
        list(threads.map(quantize_part, range(0, len(blocks), _BLOCKS_AT_ONCE)))
    of_rows = torch.from_numpy(packed).view(rows, width // 2)
    return of_rows, torch.from_numpy(scales).view(torch.int32).view(rows, width // BLOCK)


def _bounds() -> np.ndarray:
    """The middles between neighbours of the sixteen levels, float32, in order."""
    from bitsandbytes.functional import get_4bit_type

    levels = get_4bit_type("nf4", device="cpu").numpy()
    middles: np.ndarray = (levels[:-1] + levels[1:]) / 2
    return middles


def _whole(packed: torch.Tensor, scales: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    rows, half = packed.shape
    bytes_of, scales_of = packed.reshape(-1, 1), scales.view(torch.float32).flatten()
    whole: torch.Tensor = torch.ops.bitsandbytes.dequantize_4bit(
        bytes_of, scales_of, BLOCK, "nf4", (rows, 2 * half), kind
    )
    return whole


def _require_library() -> None:
    """Loads the operations.

    Raises:
        UserError: they are not installed.
    """
    try:
        import bitsandbytes  # noqa: F401 (registers its operations)
    except ImportError:
        raise UserError(
            "quantize_base is nf4, and bitsandbytes is not installed.", "Install gpu-pipelines[quantization]."
        ) from None

"""Layers that multiply in fp8, with torchao, on GPUs of the Hopper generation and later.

Rows, weights and gradients are scaled by their largest number, anew for each multiplication, so nothing of it is state.
On CPUs torchao computes the same numbers with other operations, for rehearsals and tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from gpu_pipelines.errors import UserError

#: First compute capability that it is offered on: Hopper, H100.
FP8_FROM = (9, 0)
#: The kernels take multiples of this. Source: README of torchao.float8.
_STEP = 16


def require_fp8(kind: str, precision: str, capability: tuple[int, int] | None) -> None:
    """Refuses fp8 if it cannot be computed.

    Args:
        kind: "cuda" or "cpu".
        precision: of everything else.
        capability: compute capability of the GPU, major and minor; None on CPUs.

    Raises:
        UserError: the GPU does not support it, the precision does not fit, or torchao is not installed.
    """
    if kind == "cuda" and (capability is None or capability < FP8_FROM):
        shown = "unknown" if capability is None else f"{capability[0]}.{capability[1]}"
        raise UserError(
            f"fp8 is true, which this GPU (compute capability {shown}) does not support.",
            "Leave it false, or take an H100 or a later GPU.",
        )
    if precision == "fp16":
        raise UserError("fp8 is true, and precision is fp16, whose range is too small.", "Give precision=bf16 or auto.")
    try:
        import torchao.float8  # noqa: F401
    except ImportError:
        raise UserError("fp8 is true, and torchao is not installed.", "Install gpu-pipelines[fp8].") from None


def multiply_in_fp8(blocks: Sequence[nn.Module], kind: str) -> int:
    """Makes the linear layers of blocks multiply in fp8, in place; their weights stay what they are.

    Adapters, and layers whose sides are not multiples of 16, stay as they are.

    Args:
        blocks: the repeated layers of a model.
        kind: "cuda" or "cpu".

    Returns:
        The number of linear layers.

    Raises:
        UserError: there is none.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    found: list[str] = []

    def fits(module: nn.Module, name: str) -> bool:
        # A block that is itself a linear layer could not be changed in its place.
        if not isinstance(module, nn.Linear) or not name or "lora_" in name:
            return False
        is_taken = module.in_features % _STEP == module.out_features % _STEP == 0
        found.extend([name] * is_taken)
        return is_taken

    # The gradient of a weight is a sum over the rows: their number has to be such a multiple there, and seldom is.
    config = Float8LinearConfig(emulate=kind == "cpu", pad_inner_dim=True)
    for block in blocks:
        convert_to_float8_training(block, module_filter_fn=fits, config=config)
    if not found:
        raise UserError(
            f"fp8 is true, and no repeated layer has a linear layer whose sides are multiples of {_STEP}.",
            "Leave it false.",
        )
    return len(found)

"""The precision of a training, by what its device supports."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from gpu_pipelines.errors import UserError
from gpu_pipelines.training.model.fp8 import require_fp8
from gpu_pipelines.training.settings import TrainingSettings

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
#: First compute capability with bf16 arithmetic: Ampere. Source: CUDA C++ Programming Guide, "Compute Capabilities".
BF16_FROM = (8, 0)


def precision_on(device: torch.device, settings: TrainingSettings) -> str:
    """The precision of a training on a device, which is made ready for it.

    Raises:
        UserError: the device does not support it, or fp8.
    """
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    precision = choose_precision(settings.precision, device.type, capability)
    if device.type == "cuda":
        allow_tf32(precision)
    if settings.fp8:
        require_fp8(device.type, precision, capability)
    return precision


def choose_precision(asked: str, kind: str, capability: tuple[int, int] | None) -> str:
    """The precision to train in.

    Args:
        asked: bf16, fp16, fp32 or auto.
        kind: "cuda" or "cpu".
        capability: compute capability of the GPU, major and minor; None on CPUs.

    Returns:
        bf16, fp16 or fp32.

    Raises:
        UserError: the device does not support it.
    """
    if kind == "cpu":
        if asked == "fp16":
            raise UserError("precision is fp16, which CPUs do not support.", "Give fp32, bf16 or auto.")
        return "fp32" if asked == "auto" else asked
    has_bf16 = capability is not None and capability >= BF16_FROM
    if asked == "bf16" and not has_bf16:
        raise UserError(
            f"precision is bf16, which this GPU (compute capability {_shown(capability)}) does not support.",
            "Give fp16 or auto, or a GPU of the Ampere generation or later.",
        )
    if asked == "auto":
        return "bf16" if has_bf16 else "fp16"
    return asked


def allow_tf32(precision: str) -> None:
    """Lets GPUs multiply what autocast leaves in fp32 with 10 bits of mantissa, if the rest has no more.

    Convolutions in fp32 do so by PyTorch's default, matrices do not.
    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices.

    Args:
        precision: bf16, fp16 or fp32.
    """
    if precision != "fp32":
        torch.set_float32_matmul_precision("high")


def computing_in(precision: str, kind: str) -> AbstractContextManager[object]:
    """The autocast of a forward pass; trained weights, gradients and optimizer stay in fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(kind, DTYPES[precision])


def _shown(capability: tuple[int, int] | None) -> str:
    return "unknown" if capability is None else f"{capability[0]}.{capability[1]}"

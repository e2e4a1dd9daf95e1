"""Compiling the layers of a model with torch.compile, which takes time before it saves any."""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gpu_pipelines.errors import UnfitParametersError, UserError, first_line

#: Kinds of layers that are compiled at most, as each takes seconds. A ResNet has more: each of its layers is a
#: convolution.
MOST_KINDS = 8
#: Versions of a function that are kept: one of each kind of layer for each number of documents in a batch, of which few
#: are told apart (gpu_pipelines/tasks/packed_attention.py). Beyond it, layers would silently run as they are.
_VERSIONS = 64
#: Seconds that the steps take at the GPUs' peak, from which on they are compiled. At the 40 % of it that is usual they
#: are five minutes, of which compiled layers save more than one, and to compile took 5 to 21 s on an H200:
#: `python benchmarks/training/gpu_variants.py`.
WORTH_SECONDS = 120.0


def compiles(asked: str, layers: list[nn.Module], has_one_shape: bool, operations: float, peak: float | None) -> bool:
    """Whether to compile a model's layers.

    It depends on the model and the devices, not on how long a step takes, so that a training that continues
    computes as before.

    Args:
        asked: on, off or auto. auto compiles on GPUs if it is worth it.
        layers: of the model. The layers of a Swin are its stages, all different, and each takes as long as a model.
        has_one_shape: whether all batches have the same shape. Otherwise the kernels depend on which
            shapes came before, and a training that continues would differ in the last bits.
        operations: floating-point operations of all steps.
        peak: of all devices together, operations per second; None if it is not known, and on CPUs.
    """
    if asked != "auto":
        return asked == "on"
    if peak is None or not has_one_shape or operations / peak < WORTH_SECONDS:
        return False
    kinds = {(type(layer), tuple(weight.shape for weight in layer.parameters())) for layer in layers}
    return 0 < len(kinds) <= min(MOST_KINDS, len(layers) // 2)


def can_compile(device: torch.device, must: bool) -> bool:
    """Whether PyTorch can compile on the devices of all processes; it needs a C compiler.

    All processes call it together; rank 0 prints what follows from it.

    Args:
        device: this process's.
        must: whether the user asked for it.

    Raises:
        UserError: a process cannot compile, and must.
    """
    reasons = [""] * dist.get_world_size()
    dist.all_gather_object(reasons, why_not(device))
    why = next(filter(None, reasons), "")
    if why and must:
        raise UserError(
            f"compile_model is on, and PyTorch cannot compile here: {why}",
            "Install a C++ compiler (g++) if there is none, or give compile_model=off.",
        )
    told = "compiling the layers with torch.compile, which the first steps wait for"
    if why:
        told = f"warning: the layers run as they are, as PyTorch cannot compile here: {why}"
    if dist.get_rank() == 0:
        print(told, flush=True)
    return not why


def why_not(device: torch.device) -> str:
    """Why PyTorch cannot compile on a device; empty if it can."""
    try:
        torch.compile(_twice)(torch.ones(2, device=device))
    except Exception as error:  # whatever Dynamo, Inductor, Triton or a C compiler has to say
        return first_line(error)
    return ""


def _twice(numbers: torch.Tensor) -> torch.Tensor:
    return numbers + numbers


def compile_layers(layers: list[nn.Module], has_one_shape: bool, must: bool) -> None:
    """Compiles layers when they are first called, in place.

    Inductor chooses kernels without timing them, and keeps all of them, because the order of a sum depends on the
    kernel. Otherwise a training that continues, perhaps on another machine, would differ in the last bits.

    Args:
        layers: of the model.
        has_one_shape: whether all batches have the same shape; otherwise one kernel is for several shapes.
        must: whether what PyTorch cannot compile is an error. Else it runs as it is, and a line says why, where PyTorch
            writes hundreds.
    """
    torch._inductor.config.deterministic = True
    torch._dynamo.config.recompile_limit = _VERSIONS
    if not must:
        torch._dynamo.config.suppress_errors = True
        logging.getLogger("torch._dynamo.convert_frame").addFilter(_InALine())
    for layer in layers:
        compile_layer(layer, dynamic=False if has_one_shape else None)


def compile_layer(layer: nn.Module, **how: Any) -> None:
    """Compiles a layer when it is first called, in place.

    Dynamo passes over calls of PyTorch's own code unless they are given to it themselves: by `layer.compile()` nothing
    would be compiled of a layer that has the forward pass of `nn.TransformerEncoderLayer` or `nn.Sequential`.

    Args:
        layer: of the model.
        how: arguments of torch.compile.
    """
    if layer.forward.__module__.startswith("torch.nn."):
        layer.forward = torch.compile(layer.forward, **how)
    else:
        layer.compile(**how)


def not_compiled(error: Exception) -> UserError | None:
    """The error for a layer that PyTorch could not compile when it was first called; None for other errors.

    Args:
        error: of a training.
    """
    dynamo = sys.modules.get("torch._dynamo.exc")  # where nothing was compiled, it need not be imported
    if dynamo is None or not isinstance(error, dynamo.TorchDynamoException):
        return None
    return UnfitParametersError(
        f"PyTorch cannot compile the model's layers: {first_line(error)}",
        "Give compile_model=off, or auto, which runs such layers uncompiled.",
    )


class _InALine(logging.Filter):
    """Says what was not compiled in a line, once."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno < logging.WARNING or error is None:
            return True
        if (why := first_line(error)) not in self._said:
            self._said.add(why)
            print(f"warning: what cannot be compiled runs as it is: {why}", flush=True)
        return False

"""Whether the layers of a model are compiled with torch.compile, which takes time before it saves any."""

from __future__ import annotations

import logging

import torch
from torch import nn

from gpu_pipelines.errors import first_line

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

    It follows from what is trained and on what, and not from how long a step takes, so that a training that continues
    computes as before.

    Args:
        asked: on, off or auto. auto compiles on GPUs what is worth it.
        layers: of the model. Those of a Swin are its stages, each another one, of which each takes as long as a model.
        has_one_shape: whether all batches have the same one. Of others, which kernels there are depends on which
            shapes came before, and a training that continues would differ in the last bits.
        operations: floating-point, of all steps.
        peak: of all devices together, operations per second; None where it is not known, and on CPUs.
    """
    if asked != "auto":
        return asked == "on"
    if peak is None or not has_one_shape or operations / peak < WORTH_SECONDS:
        return False
    kinds = {(type(layer), tuple(weight.shape for weight in layer.parameters())) for layer in layers}
    return 0 < len(kinds) <= min(MOST_KINDS, len(layers) // 2)


def why_not(device: torch.device) -> str:
    """Why PyTorch cannot compile on a device, as without a C compiler; empty where it can.

    Args:
        device: this process's.
    """
    try:
        torch.compile(_twice)(torch.ones(2, device=device))
    except Exception as error:  # whatever Dynamo, Inductor, Triton or a C compiler has to say
        return first_line(error)
    return ""


def _twice(numbers: torch.Tensor) -> torch.Tensor:
    return numbers + numbers


def compute_alike_anywhere() -> None:
    """Lets Inductor choose kernels without timing them, on which the order of a sum depends, and keep all of them.

    A training that continues, perhaps on another machine, would else differ in the last bits.
    """
    torch._inductor.config.deterministic = True
    torch._dynamo.config.recompile_limit = _VERSIONS


def compile_layer(layer: nn.Module, has_one_shape: bool) -> None:
    """Has a layer compiled when it is first called, in place.

    Dynamo passes over calls of PyTorch's own code unless they are given to it themselves: by `layer.compile()` nothing
    would be compiled of a layer that has the forward pass of `nn.TransformerEncoderLayer` or `nn.Sequential`.

    Args:
        layer: of the model.
        has_one_shape: of all batches; of others, one kernel is for several shapes.
    """
    dynamic = False if has_one_shape else None
    if layer.forward.__module__.startswith("torch.nn."):
        layer.forward = torch.compile(layer.forward, dynamic=dynamic)
    else:
        layer.compile(dynamic=dynamic)


def leave_as_it_is_what_fails() -> None:
    """Lets what PyTorch cannot compile run as it is. A line says why, where PyTorch writes hundreds."""
    torch._dynamo.config.suppress_errors = True
    logging.getLogger("torch._dynamo.convert_frame").addFilter(_InALine())


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

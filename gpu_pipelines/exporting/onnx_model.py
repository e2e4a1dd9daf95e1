"""Exports a model as an ONNX graph with torch's exporter, and runs that graph with ONNX Runtime."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.errors import UserError, first_line, is_of_a_full_disk
from gpu_pipelines.tasks.model_check import longest_row

FILE = "model.onnx"
OUTPUT = "logits"
#: Most rows of a batch; the graph has to know a bound.
_MOST_ROWS = 1 << 16
_MOST_TOKENS = 1 << 20


def require_writable(model: Any, directory: Path) -> None:
    """Checks that the packages that write and run ONNX are installed.

    Raises:
        UserError: one is not installed.
    """
    try:
        import onnxruntime  # noqa: F401 (only to see whether they are installed)
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"The package {error.name} is not installed.", "Install gpu-pipelines[onnx].") from None


class Inputs:
    """The inputs that a recipe gives its model, found by running it once.

    Args:
        model: the model of the recipe.
        run: runs it over a batch of at least two rows.

    Attributes:
        tensors: the tensors by name.
        constants: further arguments, the same for all batches.
        names_logits: whether the model returns an object with `logits`, not a tensor.
    """

    def __init__(self, model: nn.Module, run: Any) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.constants: dict[str, Any] = {}
        self.names_logits = False

        def look(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], found: Any) -> None:
            everything = {**{f"input{n or ''}s": value for n, value in enumerate(given)}, **named}
            self.tensors = {name: value for name, value in everything.items() if isinstance(value, torch.Tensor)}
            self.constants = {name: value for name, value in named.items() if name not in self.tensors}
            self.names_logits = not isinstance(found, torch.Tensor)

        handle = model.register_forward_hook(look, with_kwargs=True)
        with torch.inference_mode():
            run()
        handle.remove()
        self.tensors = {name: value.clone() for name, value in self.tensors.items()}

    def shapes(self, longest: int) -> dict[str, dict[int, Any]]:
        """The dimensions of the inputs that may vary: the rows, and for tokens their number."""
        rows = torch.export.Dim("batch", min=1, max=_MOST_ROWS)
        length = torch.export.Dim("length", min=1, max=longest)
        return {
            name: {0: rows} if value.is_floating_point() or value.ndim < 2 else {0: rows, 1: length}
            for name, value in self.tensors.items()
        }


def write(model: Any, inputs: Inputs, to: Path, dtype: str, opset: int) -> None:
    """Writes a model; inputs and logits are in fp32 and int64 whatever the dtype.

    Args:
        model: as in training, in evaluation mode.
        inputs: its inputs.
        to: the folder that gets `model.onnx`, and for a large model its weights in a file beside it.
        dtype: the type of the weights and the computation, `f32` or `f16`.
        opset: version of the operators, as in `ExportSettings`.

    Raises:
        UserError: the exporter cannot translate it.
    """
    if dtype == "f16":
        model = copy.deepcopy(model).half()
    names = tuple(inputs.tensors)
    graph = {1: _OfOne, 2: _OfTwo, 3: _OfThree}[len(names)](model, names, inputs, half=dtype == "f16").eval()
    longest = int(min(longest_row(model), _MOST_TOKENS)) if hasattr(model, "config") else _MOST_TOKENS
    with _without_grouped_experts(model), _quiet():
        try:
            program = torch.onnx.export(
                graph,
                tuple(value.clone() for value in inputs.tensors.values()),
                dynamo=True,
                dynamic_shapes=tuple(inputs.shapes(longest).values()),
                input_names=list(names),
                output_names=[OUTPUT],
                opset_version=opset,
                verbose=False,
            )
            assert program is not None  # it never is with dynamo
            program.save(to / FILE)
        except Exception as error:  # the exporter raises all kinds of errors if it cannot translate something
            if is_of_a_full_disk(error):
                raise
            kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
            raise UserError(f"A {kind} model cannot be written as ONNX: {_cause(error)}.") from error


class OnnxModel(nn.Module):
    """An ONNX file in place of a recipe's model, with the same inputs and outputs.

    Args:
        directory: the folder with `model.onnx`.
        inputs: the inputs of the model that was written.
        config: the configuration of that model, which the recipe may read.

    Raises:
        UserError: ONNX Runtime cannot run it.
    """

    def __init__(self, directory: Path, inputs: Inputs, config: Any) -> None:
        import onnxruntime

        super().__init__()
        self.config = config
        self._names, self._names_logits = tuple(inputs.tensors), inputs.names_logits
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(
                str(directory / FILE), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the classes of its errors are private
            raise UserError(f"ONNX Runtime cannot run the exported model: {first_line(error)}") from None

    def forward(self, *given: torch.Tensor, **named: Any) -> Any:
        tensors = {**dict(zip(self._names, given, strict=False)), **named}
        fed = {name: np.ascontiguousarray(tensors[name].numpy()) for name in self._names}
        found = torch.from_numpy(self._session.run([OUTPUT], fed)[0])
        return SimpleNamespace(logits=found) if self._names_logits else found


class _Graph(nn.Module):
    """A model that takes tensors in order, and returns only its logits."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], inputs: Inputs, half: bool) -> None:
        super().__init__()
        self.model = model
        self._names, self._constants = names, inputs.constants
        self._names_logits, self._half = inputs.names_logits, half

    def _logits(self, *given: torch.Tensor) -> torch.Tensor:
        cast = [value.half() if self._half and value.is_floating_point() else value for value in given]
        if not self._names_logits:
            return self.model(*cast).float()
        return self.model(**dict(zip(self._names, cast, strict=True)), **self._constants).logits.float()


class _OfOne(_Graph):
    def forward(self, first: torch.Tensor) -> torch.Tensor:
        return self._logits(first)


class _OfTwo(_Graph):
    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self._logits(first, second)


class _OfThree(_Graph):
    def forward(self, first: torch.Tensor, second: torch.Tensor, third: torch.Tensor) -> torch.Tensor:
        return self._logits(first, second, third)


@contextmanager
def _without_grouped_experts(model: Any) -> Iterator[None]:
    """Within the block, a mixture of experts multiplies in a way that ONNX supports."""
    if not getattr(model, "_can_set_experts_implementation", lambda: False)():
        yield
        return
    before = model.get_experts_implementation()
    model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        model.set_experts_implementation(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Within the block, hides the exporter's warnings of packages and functions that nothing here uses."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _cause(error: BaseException) -> str:
    """The first line of the error that caused the others."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error).rstrip(".")


def described(inputs: Inputs) -> dict[str, Any]:
    """The inputs that a program has to give the graph: type and shape of each, with names for dimensions that vary."""
    shapes = inputs.shapes(2)
    return {
        name: {
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": [shapes[name][n].__name__ if n in shapes[name] else size for n, size in enumerate(value.shape)],
        }
        for name, value in inputs.tensors.items()
    }

"""The settings of an export, and checks of their values."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_pipelines.artifacts.remote_files import is_remote, problems_of_place

#: The number types of a format, the default first.
TYPES = {"onnx": ("f32", "f16"), "gguf": ("f16", "f32", "bf16", "q8_0")}
OPSETS = range(18, 24)
DEFAULT_OPSET = 20
#: The share of the metric that an exported model may lose.
DEFAULT_MARGIN = 0.01


@dataclass(frozen=True)
class ExportSettings:
    """How a model is exported.

    Attributes:
        format: `onnx` or `gguf`.
        to: the destination folder, which is created; a directory or `gs://…`.
        dtype: the number type, one of `TYPES`; empty for the first of the format.
        margin: the share of the metric that it may lose on the test rows.
        opset: version of the ONNX operators.
    """

    format: str
    to: str
    dtype: str = ""
    margin: float = DEFAULT_MARGIN
    opset: int = DEFAULT_OPSET

    @property
    def numbers(self) -> str:
        """The number type."""
        return self.dtype or TYPES[self.format][0]

    def problems(self) -> list[str]:
        """All problems with the values, each with what to do."""
        if self.format not in TYPES:
            return [f"format is {self.format!r}; give {' or '.join(TYPES)}."]
        found = []
        if self.numbers not in TYPES[self.format]:
            known = TYPES[self.format]
            found.append(f"dtype is {self.dtype!r}; {self.format} has {', '.join(known[:-1])} and {known[-1]}.")
        if not 0 <= self.margin < 1:
            found.append(f"margin is {self.margin:g}; give a share of the metric, from 0 to below 1, such as 0.01.")
        if self.opset not in OPSETS:
            found.append(f"opset is {self.opset}; give {OPSETS[0]} to {OPSETS[-1]}.")
        if is_remote(self.to):
            found += problems_of_place("to", self.to)
        elif not self.to:
            found.append("to is empty; give a directory or gs://BUCKET/FOLDER.")
        return found

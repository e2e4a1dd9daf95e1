"""The progress of a training on this machine, from the files that it writes beside its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_pipelines.artifacts.checkpoint import METRICS, known_configuration
from gpu_pipelines.artifacts.checkpoint_store import last_metrics
from gpu_pipelines.numbers import throughput_told
from gpu_pipelines.reports.durations import format_seconds

#: The figures of an entry that are shown: their names and formats.
_SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {
    "loss": ("loss", "{:.4f}".format),
    "val_loss": ("loss on val", "{:.4f}".format),
    "samples_per_second": ("samples/s", throughput_told),
}
#: The resolution of file systems' clocks, at least.
_SECONDS_OF_FILES = 2.0


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of a training.

    Attributes:
        step: optimizer steps taken.
        total: optimizer steps in all; 0 if that is not known.
        figures: further figures as text, by name.
    """

    step: int
    total: int
    figures: Mapping[str, str]

    @property
    def percent(self) -> float:
        """The share of the steps taken; 0 if that is not known."""
        return round(100 * self.step / self.total, 1) if self.total else 0.0


def training_progress(checkpoints: Path, since: float) -> TrainingProgress | None:
    """The progress of the training that wrote last; None if none has written.

    Args:
        checkpoints: the folder above its checkpoints.
        since: its start, seconds since 1970.
    """
    files = [file for file in checkpoints.glob(f"**/{METRICS}") if file.stat().st_mtime > since - _SECONDS_OF_FILES]
    if not files:
        return None
    newest = max(files, key=lambda file: file.stat().st_mtime_ns)
    last = last_metrics(newest, ["step", *_SHOWN])
    if not last:
        return None
    configuration = known_configuration(newest.parent)
    step, total = int(last["step"]), int(configuration.get("total_steps", 0))
    figures = {called: told(last[name]) for name, (called, told) in _SHOWN.items() if name in last}
    rate, rows = last.get("samples_per_second"), configuration.get("settings", {}).get("global_batch_size")
    if rate and rows and total > step:
        figures["left"] = f"about {format_seconds((total - step) * rows / rate)}"
    return TrainingProgress(step, total, figures)

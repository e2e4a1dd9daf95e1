"""The journal of a study: a line for each trial that was begun, and for each part that was trained.

A line is on the disk before anything is done that depends on it. So a study that was killed knows all its trials, and
begins none twice.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import DamagedError
from gpu_pipelines.tuning.folder import JOURNAL
from gpu_pipelines.tuning.halving import Part


@dataclass(frozen=True)
class Outcome:
    """The outcome of a part of a trial.

    Attributes:
        loss: lowest loss on val so far, nats; None if the trial failed.
        seconds: time of its process since the last start of the study.
        error: why it failed; empty if it did not.
    """

    loss: float | None
    seconds: float
    error: str = ""

    @property
    def rank(self) -> float:
        """The loss, infinite if the trial failed."""
        return math.inf if self.loss is None else self.loss


class Journal:
    """The journal in the folder of a study.

    Args:
        folder: an existing folder.
        keep: stores all lines of a trial durably if the folder does not; by default it does.

    Attributes:
        parameters: the values of the searched parameters of each trial, by number.
        outcomes: the outcomes of the parts that were trained to their end.

    Raises:
        UserError: one of its lines is damaged.
    """

    def __init__(self, folder: Path, keep: Callable[[int, Sequence[bytes]], None] = lambda trial, lines: None) -> None:
        self._path, self._keep = folder / JOURNAL, keep
        self._lines: dict[int, list[bytes]] = {}
        self.parameters: dict[int, dict[str, Any]] = {}
        self.outcomes: dict[Part, Outcome] = {}
        content = self._path.read_bytes() if self._path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # the last line was cut off, and describes nothing that was done
            os.truncate(self._path, len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._take(json.loads(line), line + b"\n")
            except (ValueError, KeyError, TypeError):
                raise DamagedError(
                    f"{self._path} is damaged in line {number}.", "Start a new study in another folder."
                ) from None

    def begin(self, trial: int, parameters: Mapping[str, Any]) -> None:
        """Records that a trial has begun."""
        self._write({"trial": trial, "parameters": dict(parameters)})

    def end(self, part: Part, outcome: Outcome) -> None:
        """Records the outcome of a part of a trial."""
        self._write({**asdict(part), **asdict(outcome)})

    def _write(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        with self._path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._keep(entry["trial"], [*self._lines.get(entry["trial"], ()), line])
        self._take(entry, line)

    def _take(self, entry: Mapping[str, Any], line: bytes) -> None:
        self._lines.setdefault(entry["trial"], []).append(line)
        if "parameters" in entry:
            self.parameters[entry["trial"]] = dict(entry["parameters"])
            return
        part = Part(entry["trial"], entry["rung"])
        self.outcomes[part] = Outcome(entry["loss"], entry["seconds"], entry["error"])

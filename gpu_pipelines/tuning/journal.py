"""What a study has found out: a line for each trial that was begun, and for each part of one that was trained.

A line is on the disk before anything is done that it speaks of. So a study that was killed knows all its trials, and
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
    """What came of a part of a trial.

    Attributes:
        loss: lowest on val so far, nats; None where the trial failed.
        seconds: that its process took since the study was started last.
        error: why it failed; empty if it did not.
    """

    loss: float | None
    seconds: float
    error: str = ""

    @property
    def rank(self) -> float:
        """The loss, infinite where the trial failed."""
        return math.inf if self.loss is None else self.loss


class Journal:
    """The journal in the folder of a study.

    Args:
        folder: which is there.
        keep: makes all lines of a trial last where the folder does not; left out, it does.

    Attributes:
        parameters: what is searched for, with the values that each trial has, by number.
        outcomes: what came of the parts that were trained to their end.

    Raises:
        UserError: a line of it is damaged.
    """

    def __init__(self, folder: Path, keep: Callable[[int, Sequence[bytes]], None] = lambda trial, lines: None) -> None:
        self._path, self._keep = folder / JOURNAL, keep
        self._lines: dict[int, list[bytes]] = {}
        self.parameters: dict[int, dict[str, Any]] = {}
        self.outcomes: dict[Part, Outcome] = {}
        content = self._path.read_bytes() if self._path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # the last line was cut off, and says nothing that was done
            os.truncate(self._path, len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._take(json.loads(line), line + b"\n")
            except (ValueError, KeyError, TypeError):
                raise DamagedError(
                    f"{self._path} is damaged in line {number}.", "Start a new study in another folder."
                ) from None

    def begin(self, trial: int, parameters: Mapping[str, Any]) -> None:
        """Writes that a trial is begun."""
        self._write({"trial": trial, "parameters": dict(parameters)})

    def end(self, part: Part, outcome: Outcome) -> None:
        """Writes what came of a part of a trial."""
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

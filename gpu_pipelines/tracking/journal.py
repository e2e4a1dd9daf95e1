"""Reads a `metrics.jsonl` while a training writes it: it is the spool of what a tracker has not got yet."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_pipelines.tracking.tracker import Point

_NO_CURVE = ("step", "time")


class Journal:
    """The points of a file that grows; after an interruption its end is cut off and written again.

    Args:
        path: the file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._last = b""

    def again(self) -> None:
        """Makes `points` start with the first line again."""
        self._read, self._last = 0, b""

    def points(self) -> list[Point]:
        """The points of the lines since the last call; of all lines if some were written again."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read - len(self._last))
                if file.read(len(self._last)) != self._last:
                    self.again()
                    file.seek(0)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        if whole:
            self._read += len(whole)
            self._last = whole[whole.rstrip(b"\n").rfind(b"\n") + 1 :]
        return [point for line in whole.splitlines() for point in _points_in(line)]


def _points_in(line: bytes) -> Iterator[Point]:
    try:
        entry = json.loads(line)
    except ValueError:  # cut off by a crash
        return
    if isinstance(entry, dict) and _is_number(entry.get("step")):
        yield from points_of(entry)


def points_of(entry: Mapping[str, Any]) -> Iterator[Point]:
    """The points of one entry of a `metrics.jsonl`; values that are not finite have none.

    Args:
        entry: figures by name, with their `step`; and `time` in seconds since 1970, which a script's entry may lack.
    """
    seconds = float(entry["time"]) if _is_number(entry.get("time")) else time.time()
    for name, value in entry.items():
        if name not in _NO_CURVE and _is_number(value):
            yield Point(name, int(entry["step"]), float(value), seconds)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)

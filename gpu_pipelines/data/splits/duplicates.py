"""Which records were there before, by a hash of their content; in bounded memory, however many there are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

# Hashes in memory before they go to a file, and the most that are sorted into one file.
_IN_MEMORY = 250_000
_IN_ONE_FILE = 8_000_000


def record_number(content: int, label: str) -> int:
    """A number of 64 bits for a record: equal for equal content with the same label.

    Args:
        content: `content_number` of the record.
        label: its class; empty where there are none.
    """
    if not label:
        return content
    digest = hashlib.blake2b(label.encode("utf-8", "surrogatepass"), digest_size=8, key=content.to_bytes(8, "big"))
    return int.from_bytes(digest.digest(), "big")


@lru_cache(maxsize=1 << 16)
def label_number(label: str) -> int:
    """A number of 64 bits for a class."""
    digest = hashlib.blake2b(label.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")


class _Remembered:
    """Numbers with a value each: the newest in memory, the others in files, in which they are sorted.

    Args:
        scratch: an existing directory for files.
        in_memory: numbers after which those in memory go to a file.
    """

    #: What the names of the files begin with, and the rows of a file: the numbers, and the values if they matter.
    _name: str
    _rows: int

    def __init__(self, scratch: Path, in_memory: int = _IN_MEMORY) -> None:
        self._scratch = scratch
        self._most = in_memory
        self._newest: dict[int, int] = {}
        self._sorted: list[np.ndarray] = []
        self._files = 0

    def _in_files(self, numbers: Sequence[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Of each file: the positions of the numbers that it has, and their columns in it."""
        asked = np.array(numbers, dtype=np.uint64)
        for run in self._sorted:
            places = np.minimum(np.searchsorted(run[0], asked), run.shape[1] - 1)
            there = np.flatnonzero(run[0][places] == asked)
            yield there, run[:, places[there]]

    def _write_if_full(self) -> None:
        if len(self._newest) < self._most:
            return
        run = np.array([list(self._newest), list(self._newest.values())][: self._rows], dtype=np.uint64)
        self._newest.clear()
        while self._sorted and self._sorted[-1].shape[1] <= run.shape[1] <= _IN_ONE_FILE:
            run = np.concatenate([self._sorted.pop(), run], axis=1)
        run = run[:, np.argsort(run[0])]
        self._files += 1
        path = self._scratch / f"{self._name}-{self._files}"
        run.tofile(path)
        self._sorted.append(np.memmap(path, dtype=np.uint64, mode="r", shape=run.shape))


class SeenRecords(_Remembered):
    """The numbers of the records so far.

    Two different ones among a million have the same number with a probability of 3 in 10^8, among a billion of 3 %; one
    of the two then passes for a duplicate.
    """

    _name, _rows = "seen", 1

    def add(self, numbers: Sequence[int]) -> list[bool]:
        """Adds records and returns for each whether it is the first with its number."""
        old = {position for there, _ in self._in_files(numbers) for position in there.tolist()}
        first = []
        for position, number in enumerate(numbers):
            first.append(position not in old and number not in self._newest)
            if first[-1]:
                self._newest[number] = 0
        self._write_if_full()
        return first


class FirstLabels(_Remembered):
    """The class that each content was in when it was first seen."""

    _name, _rows = "labels", 2

    def add(self, contents: Sequence[int], labels: Sequence[int]) -> list[int]:
        """Adds records and returns for each the `label_number` that its content was first seen with.

        Args:
            contents: `content_number` of each.
            labels: `label_number` of each.
        """
        found = dict(pair for _, columns in self._in_files(contents) for pair in columns.T.tolist())
        firsts = [
            found[content] if content in found else self._newest.setdefault(content, label)
            for content, label in zip(contents, labels, strict=True)
        ]
        self._write_if_full()
        return firsts

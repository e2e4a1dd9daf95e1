"""What becomes of each record: its split, or why it is left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpu_pipelines.artifacts.dataset import SPLITS
from gpu_pipelines.components.data_prep.content_split import split_at
from gpu_pipelines.components.data_prep.duplicates import SeenRecords
from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.components.data_prep.unfinished_work import UnfinishedWork
from gpu_pipelines.errors import UserError

#: Codes of verdicts: those of the splits are their places in `SPLITS`.
DUPLICATE, NEAR_DUPLICATE, UNKNOWN = 3, 4, 255
CODES, NEAR = "codes.npy", "near.jsonl"
#: Numbers of the records of a unit, for whoever continues after it.
NUMBERS = "numbers.npy"


class Candidate(NamedTuple):
    """A usable record: its place among the records of its portion, its `content_number` and its `record_number`."""

    position: int
    content: int
    number: int


class Verdict(NamedTuple):
    """What becomes of a record.

    Attributes:
        split: `train`, `val` or `test`; empty for one that is left out.
        near: of a near-duplicate, `duplicate_of` and `similarity`.
    """

    split: str
    near: dict[str, Any] | None = None


class Verdicts(Protocol):
    """Tells what becomes of records; asked in the order of the source."""

    def of(self, portion: int, records: Sequence[Candidate]) -> list[Verdict]:
        """The verdicts on some records of a portion."""
        ...

    def pass_over(self, unit: Path) -> None:
        """The records of a unit that is done already would have come now."""
        ...


_DUPLICATE = Verdict("")


class AsTheyCome:
    """Verdicts without knowing what is still to come: of one machine, by the hash of the content alone.

    Args:
        settings: the fractions, and whether duplicates are left out.
        scratch: an empty directory for files.
    """

    def __init__(self, settings: PrepareSettings, scratch: Path) -> None:
        self._settings = settings
        self._seen = SeenRecords(scratch)

    def of(self, portion: int, records: Sequence[Candidate]) -> list[Verdict]:
        settings = self._settings
        firsts = self._seen.add([record.number for record in records])
        return [
            Verdict(split_at(record.content, settings.val_fraction, settings.test_fraction))
            if first or not settings.remove_duplicates
            else _DUPLICATE
            for record, first in zip(records, firsts, strict=True)
        ]

    def pass_over(self, unit: Path) -> None:
        self._seen.add(np.load(unit / NUMBERS).tolist())


class Judged:
    """Verdicts that were found before, from all records of the source.

    Args:
        work: has a part `judged/PORTION` for each portion.
        source: what is read, for messages.
    """

    def __init__(self, work: UnfinishedWork, source: str) -> None:
        self._work = work
        self._source = source
        self._portion = -1
        self._codes = np.zeros(0, np.uint8)
        self._near: dict[int, dict[str, Any]] = {}

    def of(self, portion: int, records: Sequence[Candidate]) -> list[Verdict]:
        if portion != self._portion:
            self._load(portion)
        return [self._verdict(record.position) for record in records]

    def pass_over(self, unit: Path) -> None:
        pass

    def _load(self, portion: int) -> None:
        name = judged_name(portion)
        self._work.require(name)
        folder = self._work.path(name)
        self._codes, self._portion = np.load(folder / CODES), portion
        lines = (folder / NEAR).read_text(encoding="utf-8").splitlines()
        self._near = {entry.pop("position"): entry for entry in map(json.loads, lines)}

    def _verdict(self, position: int) -> Verdict:
        code = int(self._codes[position]) if position < len(self._codes) else UNKNOWN
        if code == UNKNOWN:
            raise UserError(
                f"The source {self._source} has changed while it was read.", "Run the same again when it is at rest."
            )
        if code < len(SPLITS):
            return Verdict(SPLITS[code])
        return Verdict("", self._near[position]) if code == NEAR_DUPLICATE else _DUPLICATE


def judged_name(portion: int) -> str:
    """The name of the part with the verdicts on a portion."""
    return f"judged/{portion:05d}"

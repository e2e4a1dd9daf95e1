"""What becomes of each record: its split, or why it is left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpu_pipelines.artifacts.dataset import SPLITS
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.splits.content_split import split_at
from gpu_pipelines.data.splits.duplicates import FirstLabels, SeenRecords, label_number
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork
from gpu_pipelines.errors import UserError

#: Codes of assignments: those of the splits are their places in `SPLITS`.
DUPLICATE, NEAR_DUPLICATE, IN_TEST_SOURCE, CONFLICT, UNKNOWN = 3, 4, 5, 6, 255
CODES, NEAR, CONFLICTS = "codes.npy", "near.jsonl", "conflicts.npy"
#: Numbers of the records of a unit, for whoever continues after it: those of `Candidate` but for the position.
NUMBERS = "numbers.npy"


class Candidate(NamedTuple):
    """A usable record.

    Attributes:
        position: its place among the records of its shard.
        content: its `content_number`.
        number: its `record_number`.
        label: the `label_number` of its class.
        split: its `split_number`.
    """

    position: int
    content: int
    number: int
    label: int
    split: int


class SplitAssignment(NamedTuple):
    """What becomes of a record.

    Attributes:
        split: `train`, `val` or `test`; empty for one that is left out.
        near: of a near-duplicate, `duplicate_of` and `similarity`.
        other_label: another class that the same content is in; empty if there is none, or it does not matter.
        in_test_source: whether it is left out because the same content is in the test source.
    """

    split: str
    near: dict[str, Any] | None = None
    other_label: str = ""
    in_test_source: bool = False


class SplitAssignments(Protocol):
    """Tells what becomes of records; asked in the order of the source."""

    def of(self, shard: int, records: Sequence[Candidate]) -> list[SplitAssignment]:
        """The assignments of some records of a shard."""
        ...

    def pass_over(self, unit: Path) -> None:
        """The records of a unit that is done already would have come now."""
        ...


_DUPLICATE = SplitAssignment("")


class AsTheyCome:
    """Split assignments without knowing what is still to come: of one machine, by the hash of the content alone.

    Args:
        settings: the fractions, and whether duplicates are left out.
        labels: the names of the classes; none where there are none.
        scratch: an empty directory for files.
    """

    def __init__(self, settings: PrepareSettings, labels: Sequence[str], scratch: Path) -> None:
        self._settings = settings
        self._names = {label_number(label): label for label in labels}
        self._seen = SeenRecords(scratch)
        self._labels = FirstLabels(scratch)

    def of(self, shard: int, records: Sequence[Candidate]) -> list[SplitAssignment]:
        firsts = self._seen.add([record.number for record in records])
        labels = self._first_labels([r.content for r in records], [r.label for r in records])
        return [self._assignment(*known) for known in zip(records, firsts, labels, strict=True)]

    def _assignment(self, record: Candidate, is_first: bool, label: int) -> SplitAssignment:
        settings = self._settings
        if settings.remove_duplicates and not is_first:
            return _DUPLICATE
        split = split_at(record.split, settings.val_fraction, settings.test_fraction)
        return SplitAssignment(split, other_label="" if label == record.label else self._names[label])

    def _first_labels(self, contents: list[int], labels: list[int]) -> list[int]:
        return self._labels.add(contents, labels) if self._names else labels

    def pass_over(self, unit: Path) -> None:
        contents, numbers, labels = np.load(unit / NUMBERS).tolist()
        self._seen.add(numbers)
        self._first_labels(contents, labels)


class Judged:
    """Split assignments that were found before, from all records of the source.

    Args:
        work: has a part `judged/SHARD` for each shard.
        labels: the names of the classes; none where there are none.
        source: what is read, for messages.
    """

    def __init__(self, work: UnfinishedWork, labels: Sequence[str], source: str) -> None:
        self._work = work
        self._names = {label_number(label): label for label in labels}
        self._source = source
        self._shard = -1
        self._codes = np.zeros(0, np.uint8)
        self._near: dict[int, dict[str, Any]] = {}
        self._conflicts: dict[int, int] = {}

    def of(self, shard: int, records: Sequence[Candidate]) -> list[SplitAssignment]:
        if shard != self._shard:
            self._load(shard)
        return [self._assignment(record.position) for record in records]

    def pass_over(self, unit: Path) -> None:
        pass

    def _load(self, shard: int) -> None:
        name = judged_name(shard)
        self._work.require(name)
        folder = self._work.path(name)
        self._codes, self._shard = np.load(folder / CODES), shard
        lines = (folder / NEAR).read_text(encoding="utf-8").splitlines()
        self._near = {entry.pop("position"): entry for entry in map(json.loads, lines)}
        self._conflicts = dict(np.load(folder / CONFLICTS).tolist())

    def _assignment(self, position: int) -> SplitAssignment:
        code = int(self._codes[position]) if position < len(self._codes) else UNKNOWN
        if code == UNKNOWN:
            raise UserError(
                f"The source {self._source} has changed while it was read.",
                "Run the same again when it no longer changes.",
            )
        # Without classes two labels of the same content, such as two measurements, are no conflict.
        other = self._names.get(self._conflicts.get(position, -1), "")
        if code < len(SPLITS):
            return SplitAssignment(SPLITS[code], other_label=other)
        if code == NEAR_DUPLICATE:
            return SplitAssignment("", self._near[position])
        return SplitAssignment("", other_label=other, in_test_source=code == IN_TEST_SOURCE)


def judged_name(shard: int) -> str:
    """The name of the part with the assignments of a shard."""
    return f"judged/{shard:05d}"

"""The records of a source in units of work: each is kept when it is done, and passed over when it is there already."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from gpu_pipelines.artifacts.dataset import MANIFEST, Manifest
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.artifacts.documents import read_as
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.splits.duplicates import label_number, record_number
from gpu_pipelines.data.splits.split_assignments import NUMBERS, Candidate, SplitAssignment, SplitAssignments
from gpu_pipelines.data.units.host import Host
from gpu_pipelines.data.units.source_shards import SourceShard
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork

Item = TypeVar("Item")


@dataclass
class Unit:
    """A unit that is being prepared.

    Attributes:
        shard: number of the shard that it is of.
        name: its name as a part of the work.
        start: place of its first record among those of the shard.
        read: records so far.
        is_last: whether it is the last of its shard; known when all of it has been read.
        numbers: of its usable records one after another `content_number`, `record_number` and `label_number`.
    """

    shard: int
    name: str
    start: int
    read: int = 0
    is_last: bool = False
    numbers: array[int] = field(default_factory=lambda: array("Q"))


@dataclass
class Group(Generic[Item]):
    """Some records of a unit, in order; `ends` with the last ones. There may be none."""

    unit: Unit
    items: list[Item]
    start: int
    ends: bool = False


@dataclass(frozen=True)
class Sizes(Generic[Item]):
    """How records are grouped: a group ends with `most` records or `most_weight`, a unit with `unit_weight`."""

    weight: Callable[[Item], int]
    most: int
    most_weight: int
    unit_weight: int


class Units(Generic[Item]):
    """The units of some shards that are not done yet.

    Args:
        shards: what is read.
        records_of: reads the records of a source.
        sizes: of groups and units.
        work: the parts that are done.
        assignments: are told what is passed over.
        meter: is told how much has been read.

    Attributes:
        meter: the same.
        passed_over: units that were done already.
    """

    def __init__(
        self,
        shards: Sequence[SourceShard],
        records_of: Callable[[SourceFiles, Meter], Iterator[Item]],
        sizes: Sizes[Item],
        work: UnfinishedWork,
        assignments: SplitAssignments,
        meter: Meter,
    ) -> None:
        self._shards = shards
        self._records_of = records_of
        self._sizes = sizes
        self._work = work
        self._assignments = assignments
        self.meter = meter
        self.passed_over = 0

    def groups(self) -> Iterator[Group[Item]]:
        """The records of all units that are to be done, in order."""
        for shard in self._shards:
            done = units_done(self._work, shard.number)
            if done and done[-1]["is_last"]:
                for number in range(len(done)):
                    self._pass_over(shard, number)
                for _ in shard.source:
                    self.meter.finish_file()
                continue
            yield from self._groups_of(shard)

    def _groups_of(self, shard: SourceShard) -> Iterator[Group[Item]]:
        records = iter(self._records_of(shard.source, self.meter))
        start = 0
        for number in count():
            done = self._work.find(unit_name(shard.number, number))
            if done is not None:
                self._pass_over(shard, number)
                start += sum(1 for _ in islice(records, done["read"]))
                if done["is_last"]:
                    return
                continue
            unit = Unit(shard.number, unit_name(shard.number, number), start)
            yield from self._groups_in(unit, records)
            start += unit.read
            if unit.is_last:
                return

    def _groups_in(self, unit: Unit, records: Iterator[Item]) -> Iterator[Group[Item]]:
        sizes, total, weight = self._sizes, 0, 0
        items: list[Item] = []
        for item in records:
            items.append(item)
            here = sizes.weight(item)
            weight += here
            total += here
            if total >= sizes.unit_weight:
                break
            if len(items) >= sizes.most or weight >= sizes.most_weight:
                yield Group(unit, items, unit.start + unit.read)
                unit.read += len(items)
                items, weight = [], 0
        else:
            unit.is_last = True
        group = Group(unit, items, unit.start + unit.read, ends=True)
        unit.read += len(items)
        yield group

    def _pass_over(self, shard: SourceShard, number: int) -> None:
        self._assignments.pass_over(self._work.path(unit_name(shard.number, number)))
        self.passed_over += 1


def candidates(group: Group[Any], usable: Sequence[tuple[int, int, str, int]]) -> list[Candidate]:
    """The usable records of a group, and what is kept of them for whoever continues after the unit.

    Args:
        group: the group.
        usable: of each its place in the group, its `content_number`, its class and its `split_number`.
    """
    found = [
        Candidate(group.start + place, content, record_number(content, label), label_number(label), split)
        for place, content, label, split in usable
    ]
    for record in found:
        group.unit.numbers.extend((record.content, record.number, record.label))
    return found


class Made(NamedTuple):
    """What became of a record: its `content_number`, its `split_number`, and its row of the dataset."""

    content: int
    split: int
    row: Mapping[str, Any]


class Labelled(Protocol):
    """What is said in the dataset of the record that a row was made of."""

    @property
    def source(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def slice_value(self) -> str: ...


def leave_out(assignment: SplitAssignment, source: str, writer: DatasetWriter) -> bool:
    """Keeps note of a record that does not go into the dataset, and returns whether it is one."""
    if assignment.split:
        return False
    if assignment.near:
        writer.leave_out_near_duplicate(source, **assignment.near)
    elif assignment.in_test_source:
        writer.leave_out_test_row()
    elif assignment.other_label:
        writer.reject(source, "label conflict", f"the same content is in the class {assignment.other_label!r} too")
    else:
        writer.leave_out_duplicate()
    return True


def unit_name(shard: int, number: int) -> str:
    """The name of a unit as a part of the work."""
    return f"units/{shard:05d}-{number:05d}"


def units_done(work: UnfinishedWork, shard: int) -> list[dict[str, Any]]:
    """What was said of the units of a shard that are done, up to the first that is not."""
    found: list[dict[str, Any]] = []
    while not (found and found[-1]["is_last"]):
        done = work.find(unit_name(shard, len(found)))
        if done is None:
            break
        found.append(done)
    return found


class UnitWriters:
    """Writes units one after another, each as a small dataset of its own.

    Args:
        work: gets them.
        form: what `DatasetWriter` is told besides the directory.
    """

    def __init__(self, work: UnfinishedWork, form: dict[str, Any]) -> None:
        self._work = work
        self._form = form
        self._unit: Unit | None = None
        self._writer: DatasetWriter | None = None

    def of(self, unit: Unit) -> DatasetWriter:
        """The writer of a unit; that of the unit before must be finished."""
        if self._unit is not unit or self._writer is None:
            self._unit, self._writer = unit, DatasetWriter(self._work.begin(unit.name), **self._form)
        return self._writer

    def finish(self, unit: Unit) -> None:
        """Keeps a unit, all of whose records are written."""
        with self.of(unit) as writer:
            manifest = writer.finish(rows_read=unit.read)
        self._writer = None
        np.save(self._work.path(unit.name) / NUMBERS, np.array(unit.numbers, dtype=np.uint64).reshape(-1, 3).T)
        hashes = {file.path: file.sha256 for files in manifest.splits.values() for file in files}
        self._work.commit(unit.name, {"read": unit.read, "is_last": unit.is_last}, hashes)


@dataclass(frozen=True)
class Writing:
    """What is written: the units that are to be done, the writers of each, the splits of their records, and by whom."""

    units: Units[Any]
    writers: UnitWriters
    assignments: SplitAssignments
    host: Host


def write_group(group: Group[Any], made: Sequence[Made | Problem], writing: Writing) -> None:
    """Writes records that became a row each, or cannot be used.

    Args:
        group: the records, each `Labelled`.
        made: what became of each, or why it cannot be used.
        writing: where the rows go.
    """
    writer = writing.writers.of(group.unit)
    good: list[tuple[Labelled, Made]] = []
    usable = []
    for place, (record, row) in enumerate(zip(group.items, made, strict=True)):
        if isinstance(row, Problem):
            writer.reject(record.source, *row)
        else:
            good.append((record, row))
            usable.append((place, row.content, record.label, row.split))
    asked = candidates(group, usable)
    for (record, row), assignment in zip(good, writing.assignments.of(group.unit.shard, asked), strict=True):
        if not leave_out(assignment, record.source, writer):
            writer.add(assignment.split, record.source, row.row, slice_value=record.slice_value)
            if assignment.other_label:
                writer.note_label_conflict(record.source, record.label, assignment.other_label)
    if group.ends:
        writing.writers.finish(group.unit)


def manifest_of(work: UnfinishedWork, name: str) -> Manifest:
    """The manifest of a unit that is done."""
    return read_as(work.path(name) / MANIFEST, "unit of a preparation", Manifest.from_json)

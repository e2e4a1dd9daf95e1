"""Prepares tables whose rows become rows of the dataset one by one: what a task of a user's own begins with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpu_pipelines.artifacts.dataset import Feature
from gpu_pipelines.data.class_names import class_of_row
from gpu_pipelines.data.preparation import Preparation
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.source_check import require_usable_source
from gpu_pipelines.data.sources.listing import shown_path
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.rows import rows_of, slice_value, source_columns
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.sources.sources import open_source
from gpu_pipelines.data.splits.content_split import content_number
from gpu_pipelines.data.splits.record_index import Entry
from gpu_pipelines.data.splits.split_assignments import SplitAssignments
from gpu_pipelines.data.units.progress import Progress
from gpu_pipelines.data.units.replicas import Replicas
from gpu_pipelines.data.units.source_shards import SourceShard
from gpu_pipelines.data.units.units import Group, Sizes, Units, UnitWriters, candidates, leave_out
from gpu_pipelines.data.usable import require_labels, require_labels_of_test
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.tasks import task_named

ROWS_AT_ONCE = 2000
#: What a row weighs besides its bytes, so that a unit of small rows ends as well.
_ROW = 64


class Record(NamedTuple):
    """A row of the source.

    Attributes:
        source: where it is, for people.
        values: of the features.
        content: what decides its split: equal inputs are equal bytes.
        label: what is learned of it, as text; rows of the same content and label are the same.
        problem: why it cannot be used, or None.
        slice_value: its value of the column `slice_by`.
    """

    source: str
    values: Mapping[str, Any]
    content: bytes = b""
    label: str = ""
    problem: Problem | None = None
    slice_value: str = ""


@dataclass
class Survey:
    """What the first pass finds: the names of the classes, and the first row with each problem."""

    rows: int = 0
    labels: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)


class RowPreparation(Preparation[Survey]):
    """Rows of a table, each by itself.

    A subclass says which features a row has and how they follow from its columns. Reading, splits, duplicates, units
    of work, continuation after an interruption and preparation on several machines are those of every task.

    Attributes:
        targets: the features that are learned; all others are inputs, which decide a row's split.
    """

    targets: tuple[str, ...] = ("label", "target")

    @abstractmethod
    def features(self) -> dict[str, Feature]:
        """The features of a row; `label`, where the task has classes, is the index of the class and made here."""

    @abstractmethod
    def values(self, row: Mapping[str, Any]) -> Mapping[str, Any] | Problem:
        """The features of a row but for `label`, as arrays or numbers; or why it cannot be used.

        Args:
            row: values by column, those of `Task.columns_of`.
        """

    def preprocessing(self) -> dict[str, Any]:
        """What whoever serves the model has to know of how a row becomes features, in the terms of JSON."""
        return {}

    def __init__(self, settings: PrepareSettings, scratch: Path, source: SourceFiles | None = None) -> None:
        self.settings = settings
        self.task = task_named(settings.task)
        self.source = self._found(settings, scratch / "source", source)
        self.test_source = self._found(settings.of_test_source(), scratch / "test") if settings.test_source else None
        if self.test_source and self.test_source.columns != self.source.columns:
            raise UserError(
                f"test_source has the columns {', '.join(self.test_source.columns)}, and source has "
                f"{', '.join(self.source.columns)}.",
                "Give both in the same form.",
            )

    def _found(self, settings: PrepareSettings, scratch: Path, source: SourceFiles | None = None) -> SourceFiles:
        found = source or open_source(settings, scratch)
        require_usable_source(found, settings)
        columns = self.task.columns_of(settings, source_columns(found, self.task.columns(settings)))
        return replace(found, columns=columns)

    def survey(self, share: SourceFiles, replicas: Replicas) -> Survey:
        meter, found = Meter(share), Survey()
        progress = Progress("looking through", meter)
        for record in self.records(share, meter) if self.task.has_classes else ():
            replicas.check()
            progress.advance()
            found.rows += 1
            if record.problem:
                found.problems.setdefault(record.problem.reason, f"{record.source}: {record.problem.detail}")
            else:
                found.labels.add(record.label)
        return found

    def survey_of_test(self, share: SourceFiles, replicas: Replicas) -> Survey:
        return self.survey(share, replicas)

    def save_survey(self, found: Survey, folder: Path) -> dict[str, Any]:
        return {"rows": found.rows, "labels": sorted(found.labels), "problems": found.problems}

    def join_surveys(self, saved: list[tuple[Path, Mapping[str, Any]]]) -> Survey:
        whole = Survey()
        for _, said in saved:
            whole.rows += said["rows"]
            whole.labels.update(said["labels"])
            whole.problems.update({**said["problems"], **whole.problems})
        return whole

    def plan(self, found: Survey, of_test: Survey | None, folder: Path) -> dict[str, Any]:
        if not self.task.has_classes:
            return {"labels": []}
        labels = require_labels(found.labels, self.settings, found.problems)
        if of_test:
            require_labels_of_test(of_test.labels, labels, self.settings)
        return {"labels": labels}

    def records(self, source: SourceFiles, meter: Meter) -> Iterator[Record]:
        columns = list(self.source.columns)
        for _, (where, row) in rows_of(source, columns, self.task.remedy_for_columns, meter):
            yield self._record(where, row)

    def _record(self, where: str, row: dict[str, Any] | Problem) -> Record:
        if isinstance(row, Problem):
            return Record(where, {}, problem=row)
        values = self.values(row)
        if isinstance(values, Problem):
            return Record(where, {}, problem=values)
        arrays = {
            name: np.asarray(values[name], dtype=feature.dtype)
            for name, feature in self.features().items()
            if not (name == "label" and self.task.has_classes)
        }
        inputs = b"".join(arrays[name].tobytes() for name in arrays if name not in self.targets)
        label: str | Problem = " ".join(str(arrays[name].tolist()) for name in arrays if name in self.targets)
        if self.task.has_classes:
            label = class_of_row(row, self.settings)
        if isinstance(label, Problem):
            return Record(where, {}, problem=label)
        return Record(where, arrays, inputs, label, slice_value=slice_value(row, self.settings.slice_by))

    def entries(self, shard: SourceShard, replicas: Replicas) -> Iterator[Entry]:
        meter = Meter(shard.source)
        progress = Progress("looking for duplicates", meter)
        for position, record in enumerate(self.records(shard.source, meter)):
            progress.advance()
            replicas.check()
            if not record.problem:
                content = content_number(record.content, self.settings.split_seed)
                yield Entry(position, content, record.label, record.source)

    def sizes(self, plan: Mapping[str, Any], unit_weight: int) -> Sizes[Record]:
        return Sizes(lambda record: len(record.content) + _ROW, ROWS_AT_ONCE, unit_weight, unit_weight)

    def form(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "task": self.settings.task,
            "source": shown_path(self.settings.source),
            "features": self.features(),
            "labels": plan["labels"],
            "preprocessing": self.preprocessing(),
            "slice_by": self.settings.slice_by,
            "rows_per_shard": self.settings.rows_per_shard(self.features()),
        }

    def write(
        self,
        plan: Mapping[str, Any],
        folder: Path,
        units: Units[Record],
        writers: UnitWriters,
        assignments: SplitAssignments,
    ) -> Iterator[None]:
        index = {label: number for number, label in enumerate(plan["labels"])}
        progress = Progress("preparing", units.meter)
        for group in units.groups():
            self._write_group(group, index, writers, assignments)
            progress.advance(len(group.items))
            yield

    def _write_group(
        self, group: Group[Record], index: Mapping[str, int], writers: UnitWriters, assignments: SplitAssignments
    ) -> None:
        writer, seed = writers.of(group.unit), self.settings.split_seed
        good = [(place, record) for place, record in enumerate(group.items) if not record.problem]
        for record in group.items:
            if record.problem:
                writer.reject(record.source, *record.problem)
        known = [(place, content_number(record.content, seed), record.label) for place, record in good]
        asked = candidates(group, known)
        for (_, record), assignment in zip(good, assignments.of(group.unit.shard, asked), strict=True):
            if leave_out(assignment, record.source, writer):
                continue
            row = {**record.values, "label": index[record.label]} if index else record.values
            writer.add(assignment.split, record.source, row, slice_value=record.slice_value)
            if assignment.other_label:
                writer.note_label_conflict(record.source, record.label, assignment.other_label)
        if group.ends:
            writers.finish(group.unit)

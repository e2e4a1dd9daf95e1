"""Prepares tables whose rows become rows of the dataset one by one: what a task of a user's own begins with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpu_pipelines.artifacts.dataset import Feature
from gpu_pipelines.data.class_names import ClassNumbers, class_of_row
from gpu_pipelines.data.preparation import Preparation, Survey
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.rows import beside, columns_read, rows_of
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.splits.content_split import content_number, split_number
from gpu_pipelines.data.units.host import Host
from gpu_pipelines.data.units.progress import Progress
from gpu_pipelines.data.units.units import Made, Sizes, Writing, write_group
from gpu_pipelines.errors import UserError, named

#: What is made into rows of the dataset together: so many rows, or bytes of them. Each number of a row takes some 50
#: times as much in memory until then.
ROWS_AT_ONCE, BYTES_AT_ONCE = 2000, 1 << 20
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
        group: its value of the column `group_by`.
    """

    source: str
    values: Mapping[str, Any]
    content: bytes = b""
    label: str = ""
    problem: Problem | None = None
    slice_value: str = ""
    group: str = ""


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

    def columns_of(self, source: SourceFiles, settings: PrepareSettings) -> tuple[str, ...]:
        return columns_read(source, settings)

    def empty_survey(self) -> Survey:
        return Survey()

    @property
    def surveys_all(self) -> bool:
        return self.task.has_classes

    def survey(self, share: SourceFiles, host: Host) -> Survey:
        meter, found = Meter(share), self.empty_survey()
        if self.task.has_classes:
            found.labels.update(r.label for r in found.usable(self.records(share, meter), meter, host.check))
        return found

    def survey_of_test(self, share: SourceFiles, host: Host) -> Survey:
        return self.survey(share, host)

    def plan(self, found: Survey, of_test: Survey | None, folder: Path) -> dict[str, Any]:
        return {"labels": self.labels(found, of_test)}

    def records(self, source: SourceFiles, meter: Meter) -> Iterator[Record]:
        columns, features = list(self.source.columns), self.features()
        for _, (where, row) in rows_of(source, columns, meter):
            yield self._record(where, row, features)

    def _record(self, where: str, row: dict[str, Any] | Problem, features: Mapping[str, Feature]) -> Record:
        if isinstance(row, Problem):
            return Record(where, {}, problem=row)
        values = self.values(row)
        if isinstance(values, Problem):
            return Record(where, {}, problem=values)
        arrays = {
            name: self._array(name, feature, values, where)
            for name, feature in features.items()
            if not (name == "label" and self.task.has_classes)
        }
        inputs = b"".join(arrays[name].tobytes() for name in arrays if name not in self.targets)
        label: str | Problem = " ".join(str(arrays[name].tolist()) for name in arrays if name in self.targets)
        if self.task.has_classes:
            label = class_of_row(row, self.settings)
        if isinstance(label, Problem):
            return Record(where, {}, problem=label)
        return Record(where, arrays, inputs, label, **beside(row, self.settings))

    def _array(self, name: str, feature: Feature, values: Any, where: str) -> np.ndarray:
        """The value of a feature that a subclass gave for a row.

        Raises:
            UserError: it gave none, or one of another type or shape.
        """
        remedy = "Return a value of its type and shape for each of features(), or a Problem, which rejects the row."
        try:
            found = np.asarray(values[name], dtype=feature.dtype)
        except (LookupError, TypeError, ValueError) as error:
            raise UserError(f"{self._told(name, where)}: {named(error)}.", remedy) from error
        if found.shape != feature.shape and not (feature.is_list and found.ndim == 1):
            raise UserError(f"{self._told(name, where)}: it has the shape {found.shape}, not {feature.shape}.", remedy)
        return found

    def _told(self, name: str, where: str) -> str:
        return f"values of {type(self).__name__} is wrong about the feature {name!r} of {where}"

    def sizes(self, plan: Mapping[str, Any], unit_weight: int) -> Sizes[Record]:
        return Sizes(lambda record: len(record.content) + _ROW, ROWS_AT_ONCE, BYTES_AT_ONCE, unit_weight)

    def row_form(self, plan: Mapping[str, Any]) -> tuple[dict[str, Feature], dict[str, Any]]:
        return self.features(), self.preprocessing()

    def write(self, plan: Mapping[str, Any], folder: Path, writing: Writing) -> Iterator[None]:
        index = ClassNumbers(plan["labels"])
        progress = Progress("preparing", writing.units.meter)
        for group in writing.units.groups():
            made = [_made(record, index, self.settings.split_seed) for record in group.items]
            write_group(group, made, writing)
            progress.advance(len(group.items))
            yield


def _made(record: Record, index: Mapping[str, int], seed: int) -> Made | Problem:
    if record.problem:
        return record.problem
    row = {**record.values, "label": index[record.label]} if index else record.values
    content = content_number(record.content, seed)
    return Made(content, split_number(content, record.group, seed), row)

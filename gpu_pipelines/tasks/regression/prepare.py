"""Prepares the numbers to learn, with the images, the texts or the other numbers that they are learned from."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Feature
from gpu_pipelines.artifacts.image_features import ImageGeometry
from gpu_pipelines.data.images.prepare import ImagePreparation
from gpu_pipelines.data.images.sources import Record, image_records
from gpu_pipelines.data.preparation import Preparation
from gpu_pipelines.data.row_preparation import RowPreparation
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.rows import columns_read
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.sources.sources import open_source
from gpu_pipelines.data.text.prepare import TextPreparation
from gpu_pipelines.data.text.sources import TextRecord, labelled_texts
from gpu_pipelines.data.text.work import SingleTexts
from gpu_pipelines.errors import UserError
from gpu_pipelines.numbers import number_of
from gpu_pipelines.tasks.regression.task import INPUT, TARGET, without_number

#: Features and targets are float32.
_LARGEST = float(np.finfo(np.float32).max)
#: Numbers as people write them, which cannot be told from each other: 1,234 is one of four digits, or of one.
_SEPARATED = re.compile(r"[-+]?\d[\d.,' _]*")
_TRUTH = {"true": 1.0, "false": 0.0}
_OTHERS = "feature_columns can leave it out"


def preparation_of(settings: PrepareSettings, scratch: Path) -> Preparation[Any]:
    """The preparation of images, of texts or of numbers, by the columns that the source has.

    Raises:
        UserError: the source does not exist or lacks a column.
    """
    source = open_source(settings, scratch / "source")
    columns = columns_read(source, settings)
    learned_from = None if settings.feature_names else columns[0]
    if learned_from == settings.text_column:
        return MeasuredTexts(settings, scratch, source)
    if settings.near_duplicates:
        raise UserError("near_duplicates are found among texts only.", "Leave it at 0 for images and numbers.")
    if learned_from == settings.image_column:
        return MeasuredImages(settings, scratch, source)
    return Measurements(settings, scratch, source)


class MeasuredImages(ImagePreparation):
    """Images, each with the numbers to learn."""

    def records(self, source: SourceFiles, meter: Meter) -> Iterator[Record]:
        return image_records(source, self.settings, meter, numbers_of)

    def target_features(self) -> dict[str, Feature]:
        return {TARGET: _target(self.settings)}

    def target_of(self, plan: Mapping[str, Any]) -> Callable[[Record], dict[str, Any]]:
        return lambda record: {TARGET: _parsed(record.label)}

    def preprocessing(self, geometry: ImageGeometry) -> dict[str, Any]:
        return {**super().preprocessing(geometry), "targets": list(self.settings.label_columns)}


class MeasuredWork(SingleTexts):
    """Texts one to a row, each with its numbers."""

    @staticmethod
    def targets(targets: Sequence[Any]) -> dict[str, np.ndarray]:
        return {TARGET: np.array(targets, dtype=np.float32)}


class MeasuredTexts(TextPreparation):
    """Texts, or pairs of texts, each with the numbers to learn."""

    work = MeasuredWork

    def columns_of(self, source: SourceFiles, settings: PrepareSettings) -> tuple[str, ...]:
        return columns_read(source, settings)

    def records(self, source: SourceFiles, meter: Meter) -> Iterator[TextRecord]:
        return labelled_texts(source, self.settings, meter, numbers_of)

    def features(self, length: int) -> dict[str, Feature]:
        return {**self.token_features(length), TARGET: _target(self.settings)}

    def target_of(self, plan: Mapping[str, Any]) -> Callable[[TextRecord], list[float]]:
        return lambda record: _parsed(record.label)

    def preprocessing(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().preprocessing(plan), "targets": list(self.settings.label_columns)}


class Measurements(RowPreparation):
    """Rows of numbers, of which some are learned from the others."""

    targets = (TARGET,)

    @property
    def _inputs(self) -> Sequence[str]:
        if self.settings.feature_names:
            return self.settings.feature_names
        named = {*self.settings.label_columns, *self.settings.columns_beside}
        return [column for column in self.source.columns if column not in named]

    def features(self) -> dict[str, Feature]:
        return {**{f"{INPUT}{name}": Feature("float32") for name in self._inputs}, TARGET: _target(self.settings)}

    def values(self, row: Mapping[str, Any]) -> Mapping[str, Any] | Problem:
        found: dict[str, Any] = {}
        for name in self._inputs:
            number = number_in(row, name)
            if isinstance(number, Problem):
                return number if self.settings.feature_names else number._replace(detail=f"{number.detail}; {_OTHERS}")
            found[f"{INPUT}{name}"] = number
        learned = numbers_of(row, self.settings)
        return learned if isinstance(learned, Problem) else {**found, TARGET: _parsed(learned)}

    def preprocessing(self) -> dict[str, Any]:
        return {"inputs": list(self._inputs), "targets": list(self.settings.label_columns)}


def numbers_of(row: Mapping[str, Any], settings: PrepareSettings) -> str | Problem:
    """The numbers to learn of a row with blanks between them, or why it has none."""
    found = [number_in(row, column) for column in settings.label_columns]
    problem = next((number for number in found if isinstance(number, Problem)), None)
    return problem or " ".join(map(repr, found))


def number_in(row: Mapping[str, Any], column: str) -> float | Problem:
    """The number that a row has in a column, or why it has none; text is read as pandas reads numbers.

    Truth values are 1 and 0 in any table: as JSON and Parquet have them, and as text in CSV.
    """
    value = row.get(column)
    if value is None or (isinstance(value, str) and not value.strip()) or value != value:
        return Problem(without_number(column), f"the column {column!r} is empty")
    try:
        if isinstance(value, str):
            known = _TRUTH.get(value.strip().lower())
            number = number_of(value.strip()) if known is None else known
        else:
            number = float(value)
    except (TypeError, ValueError, OverflowError):
        is_separated = isinstance(value, str) and _SEPARATED.fullmatch(value.strip())
        hint = ", and numbers are written as 1234.5" if is_separated else ""
        return Problem(without_number(column), f"the column {column!r} holds {str(value)[:80]!r}{hint}")
    if abs(number) <= _LARGEST:
        return number
    too_large = f", and numbers are at most {_LARGEST:.1e}" if math.isfinite(number) else ""
    return Problem(without_number(column), f"the column {column!r} holds {str(value)[:80]}{too_large}")


def _parsed(numbers: str) -> list[float]:
    return [float(number) for number in numbers.split()]


def _target(settings: PrepareSettings) -> Feature:
    return Feature("float32", (len(settings.label_columns),))

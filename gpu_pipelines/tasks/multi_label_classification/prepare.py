"""Prepares the classes of images or of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import CLASSES, Feature
from gpu_pipelines.data.class_names import ClassNumbers
from gpu_pipelines.data.images.prepare import ImagePreparation
from gpu_pipelines.data.images.sources import Record, image_records
from gpu_pipelines.data.preparation import Preparation, Survey
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.sources.rows import columns_read
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.sources.sources import open_source
from gpu_pipelines.data.text.prepare import TextPreparation
from gpu_pipelines.data.text.sources import TextRecord, labelled_texts
from gpu_pipelines.data.text.work import SingleTexts
from gpu_pipelines.data.usable import require_labels, require_labels_of_test
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.multi_label_classification.labels import MARKS, classes_in, classes_of_row


def preparation_of(settings: PrepareSettings, scratch: Path) -> Preparation[Any]:
    """The preparation of images or of texts, by the columns that the source has.

    Raises:
        UserError: the source does not exist or lacks a column.
    """
    source = open_source(settings, scratch / "source")
    if columns_read(source, settings)[0] == settings.text_column:
        return TextsOfClasses(settings, scratch, source)
    if settings.near_duplicates:
        raise UserError("near_duplicates are found among texts only.", "Leave it at 0 for images.")
    return ImagesOfClasses(settings, scratch, source)


class ImagesOfClasses(ImagePreparation):
    """Images, each with all classes that it is of."""

    def records(self, source: SourceFiles, meter: Meter) -> Iterator[Record]:
        return image_records(source, self.settings, meter, classes_of_row)

    def names_in(self, record: Record) -> Iterable[str]:
        return classes_in(record.label) if record.label else ()

    def plan(self, found: Any, of_test: Any, folder: Path) -> dict[str, Any]:
        return {**super().plan(found, of_test, folder), CLASSES: _classes(found, of_test, self.settings)}

    def row_form(self, plan: Mapping[str, Any]) -> tuple[dict[str, Feature], dict[str, Any]]:
        features, said = super().row_form(plan)
        return {**features, **_feature(plan)}, {**said, CLASSES: plan[CLASSES]}

    def target_features(self) -> dict[str, Feature]:
        return {}

    def target_of(self, plan: Mapping[str, Any]) -> Callable[[Record], dict[str, Any]]:
        marked = _marks(plan)
        return lambda record: {CLASSES: marked(record.label)}


class ClassesWork(SingleTexts):
    """Texts one to a row, each with its classes."""

    @staticmethod
    def targets(targets: Sequence[Any]) -> dict[str, np.ndarray]:
        return {CLASSES: np.array(targets, dtype=np.uint8)}


class TextsOfClasses(TextPreparation):
    """Texts, or pairs of texts, each with all classes that it is of."""

    reads_all = True
    work = ClassesWork

    def columns_of(self, source: SourceFiles, settings: PrepareSettings) -> tuple[str, ...]:
        return columns_read(source, settings)

    def records(self, source: SourceFiles, meter: Meter) -> Iterator[TextRecord]:
        return labelled_texts(source, self.settings, meter, classes_of_row)

    def names_in(self, record: TextRecord) -> Iterable[str]:
        return classes_in(record.label)

    def plan(self, found: Any, of_test: Any, folder: Path) -> dict[str, Any]:
        return {**super().plan(found, of_test, folder), CLASSES: _classes(found, of_test, self.settings)}

    def features(self, length: int) -> dict[str, Feature]:
        return self.token_features(length)

    def row_form(self, plan: Mapping[str, Any]) -> tuple[dict[str, Feature], dict[str, Any]]:
        features, said = super().row_form(plan)
        return {**features, **_feature(plan)}, {**said, CLASSES: plan[CLASSES]}

    def target_of(self, plan: Mapping[str, Any]) -> Callable[[TextRecord], np.ndarray]:
        marked = _marks(plan)
        return lambda record: marked(record.label)


def _classes(found: Survey, of_test: Survey | None, settings: PrepareSettings) -> list[str]:
    """The classes: those of the columns as they were named, else in the order in which people sort them.

    Raises:
        UserError: there are fewer than two, or a column has 0 and 1 in place of names.
    """
    if len(settings.label_columns) > 1:
        return list(settings.label_columns)
    classes = require_labels(found.labels, settings, found.problems)
    if {name.lower() for name in classes} <= MARKS.keys():  # as transformers takes several classes of a row
        raise UserError(
            f"The column {settings.label_column!r} has nothing but {' and '.join(classes)}, which are not names.",
            "Give lists of names, or a column of 0 and 1 for each class: label_column names all of them, separated by "
            "commas. Rows of one class each are learned by text_classification or image_classification.",
        )
    if of_test:
        require_labels_of_test(of_test.labels, classes, settings)
    return classes


def _feature(plan: Mapping[str, Any]) -> dict[str, Feature]:
    return {CLASSES: Feature("uint8", (len(plan[CLASSES]),))}


def _marks(plan: Mapping[str, Any]) -> Callable[[str], np.ndarray]:
    index = ClassNumbers(plan[CLASSES])

    def marked(label: str) -> np.ndarray:
        found = np.zeros(len(index), dtype=np.uint8)
        found[[index[name] for name in classes_in(label)]] = 1
        return found

    return marked

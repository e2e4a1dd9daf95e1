"""Regression: tables with one or more numbers to learn in each row, from images, texts, or the other columns."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.formats import TABLES
from gpu_pipelines.tasks.image_classification.task import ImageClassificationTask
from gpu_pipelines.tasks.metric import ERROR, Metric
from gpu_pipelines.tasks.task import Task
from gpu_pipelines.tasks.text_classification.task import TextClassificationTask

if TYPE_CHECKING:
    from gpu_pipelines.data.settings import PrepareSettings


#: The feature of the numbers to learn, and what stands before the name of a column that is learned from, as a feature.
TARGET, INPUT = "target", "input."
#: How the reason begins for which a row without a number is rejected; the column follows.
WITHOUT_NUMBER = "no number in"


_OF_NUMBERS = ("mlp-small", "linear")

#: What pandas calls the numbers of rows, which it writes unless told not to: the order of a file is no feature.
_ROW_NUMBERS = re.compile(r"(Unnamed: \d+|__index_level_\d+__)?")


class RegressionTask(Task):
    """Numbers; `label_column` names the columns that hold them, with commas between several."""

    formats = (*TABLES, "tar")
    parameters = (
        *("image_column", "text_column", "text_pair_column", "feature_columns", "label_column", "image_root"),
        *("slice_by", "group_by", "image_size", "image_processor", "color_mode", "image_storage", "augmentation"),
        *("tokenizer", "vocabulary_size", "sequence_length", "near_duplicates"),
    )
    samples = {"diabetes": "gpu_pipelines.tasks.regression.sample:write_diabetes"}
    defaults = {"source": "sample:diabetes", "model": "mlp-small"}
    preparation = "gpu_pipelines.tasks.regression.prepare:preparation_of"
    recipe = "gpu_pipelines.tasks.regression.recipe:Regression"
    models = (*_OF_NUMBERS, *ImageClassificationTask.models, *TextClassificationTask.models)
    without_adapters = ("linear", *ImageClassificationTask.without_adapters)
    metrics = {
        "rmse": ERROR,
        "mae": ERROR,
        "r2": Metric(smallest=-math.inf),
        "coverage": Metric(),
    }
    scoring = "gpu_pipelines.tasks.regression.scoring:RegressionScoring"
    worst = "The rows of test that are predicted worst, by the error in standard deviations of what is learned."
    predictor = "gpu_pipelines.tasks.regression.predictor:Regressor"
    remedy_for_columns = (
        "Name the columns that hold the numbers to learn with -p label_column=…, with commas between several. They are "
        "learned from feature_columns; where that is empty from image_column, else from text_column, else from all "
        "other columns."
    )

    def is_for(self, config: Mapping[str, Any]) -> bool:
        # Another program's model of numbers has no variance, by which each gets its interval.
        return "regression" in config

    def problems(self, settings: PrepareSettings) -> list[str]:
        found = [] if settings.label_columns else ["label_column is empty. Name the columns of the numbers to learn."]
        if both := [name for name in settings.feature_names if name in settings.label_columns]:
            found.append(f"feature_columns and label_column both name {both[0]!r}. Learn it, or learn from it.")
        if settings.text_pair_column and settings.feature_names:
            found.append("text_pair_column is of texts, and feature_columns are of numbers. Leave one of them out.")
        if settings.text_pair_column in (settings.text_column, *settings.label_columns):
            found.append(f"text_pair_column is {settings.text_pair_column!r}, as another column. Name one of its own.")
        return found + self.problems_without_classes(settings)

    def columns(self, settings: PrepareSettings) -> list[tuple[str, ...]]:
        named = (*settings.label_columns, *settings.columns_beside)
        choices = [(settings.image_column, *named), (settings.text_column, *named), named]
        if features := settings.feature_names:
            choices = [(*features, *named)]
        elif settings.text_pair_column:
            choices = [(*settings.classified_columns, *named), named]
        return [tuple(dict.fromkeys(choice)) for choice in choices]

    def columns_of(self, settings: PrepareSettings, has: Sequence[str]) -> tuple[str, ...]:
        *choices, named = self.columns(settings)
        if missing := [name for name in named if name not in has]:
            raise self.lacks(settings, has, missing)
        for choice in choices:
            if set(choice) <= set(has):
                return choice
        if settings.text_pair_column:
            raise self.lacks(settings, has, [name for name in choices[0] if name not in has])
        if settings.feature_names:
            return named
        others = [name for name in has if name not in named and not _ROW_NUMBERS.fullmatch(name)]
        if not others:
            raise UserError(f"The source {settings.source} has no column to learn from.", self.remedy_for_columns)
        return tuple(dict.fromkeys((*others, *named)))

    def learns_from_images(self, settings: PrepareSettings, columns: Sequence[str]) -> bool:
        return columns[0] == settings.image_column and not settings.feature_names

    def model_problems(self, settings: PrepareSettings, columns: Sequence[str], model: str) -> list[str]:
        kind: str = "numbers"
        fit: tuple[str, ...] = _OF_NUMBERS
        if self.learns_from_images(settings, columns):
            kind, fit = f"the images in {columns[0]!r}", ImageClassificationTask.models
        elif not settings.feature_names and columns[0] == settings.text_column:
            kind, fit = f"the texts in {columns[0]!r}", TextClassificationTask.models
        if model not in self.models or model in fit:
            return []
        return [f"model is {model!r}, and {settings.source} is learned from {kind}. Give {', '.join(fit)}."]

    def may_nest(self, settings: PrepareSettings, column: str, kind: str) -> bool:
        return column == settings.image_column


def without_number(column: str) -> str:
    """Why a row is rejected that has no number in a column."""
    return f"{WITHOUT_NUMBER} {column[:80]!r}"

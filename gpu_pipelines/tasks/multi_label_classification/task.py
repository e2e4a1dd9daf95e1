"""Multi-label classification: tables with an image or a text in each row, and all classes that it is of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_pipelines.tasks.classification.task import Classification
from gpu_pipelines.tasks.formats import TABLES
from gpu_pipelines.tasks.hyperparameters import ENCODER_WITH_ADAPTERS, FINE_TUNED_ENCODER
from gpu_pipelines.tasks.image_classification.task import ImageClassificationTask
from gpu_pipelines.tasks.metric import ERROR, Metric
from gpu_pipelines.tasks.task import Task
from gpu_pipelines.tasks.text_classification.task import TextClassificationTask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpu_pipelines.data.settings import PrepareSettings

#: transformers' name of what the model is for: its pipelines take a sigmoid of each logit then.
PROBLEM = "multi_label_classification"


class MultiLabelTask(Task):
    """Images or texts of any number of classes each.

    `label_column` holds the names of a row's classes, or names several columns, with commas between them: a class
    each, with 1 in the rows that are of it and 0 in the others.
    """

    formats = (*TABLES, "tar")
    takes_lists = True
    parameters = (
        *("image_column", "text_column", "text_pair_column", "label_column", "image_root", "missing_labels"),
        *("slice_by", "group_by", "image_size", "image_processor", "color_mode", "image_storage", "augmentation"),
        *("tokenizer", "vocabulary_size", "sequence_length", "near_duplicates"),
    )
    samples = {
        "several_digits": "gpu_pipelines.tasks.multi_label_classification.sample:write_several_digits",
    }
    defaults = {"source": "sample:several_digits", "model": "convnext-micro"}
    preparation = "gpu_pipelines.tasks.multi_label_classification.prepare:preparation_of"
    recipe = "gpu_pipelines.tasks.multi_label_classification.recipe:MultiLabelClassification"
    models = (*ImageClassificationTask.models, *TextClassificationTask.models)
    without_adapters = ImageClassificationTask.without_adapters
    metrics = {
        "f1": Metric(),
        "precision": Metric(),
        "recall": Metric(),
        "macro_f1": Metric(),
        "exact_match": Metric(),
        "log_loss": ERROR,
    }
    figures = Classification.figures
    scoring = "gpu_pipelines.tasks.multi_label_classification.scoring:MultiLabelScoring"
    worst = "The rows of test with the most classes that were missed, or found where they are none."
    predictor = "gpu_pipelines.tasks.multi_label_classification.predictor:MultiLabelClassifier"
    watched = "gpu_pipelines.tasks.multi_label_classification.watched:WatchedClasses"
    architectures = (*ImageClassificationTask.architectures, *TextClassificationTask.architectures)
    fine_tuned, with_adapters = FINE_TUNED_ENCODER, ENCODER_WITH_ADAPTERS
    remedy_for_columns = (
        "Name the columns with -p label_column=… and -p image_column=… or -p text_column=…. Where each class has a "
        "column of 0 and 1, label_column names all of them, with commas between."
    )

    def is_for(self, config: Mapping[str, Any]) -> bool:
        return super().is_for(config) and config.get("problem_type") == PROBLEM

    def problems(self, settings: PrepareSettings) -> list[str]:
        found = [] if settings.label_columns else ["label_column is empty. Name the column of the classes."]
        if settings.text_pair_column in (settings.text_column, *settings.label_columns):
            found.append(f"text_pair_column is {settings.text_pair_column!r}, as another column. Name one of its own.")
        return found + self.problems_without_classes(settings)

    def columns(self, settings: PrepareSettings) -> list[tuple[str, ...]]:
        texts = (*settings.classified_columns, *settings.label_columns)
        images = (settings.image_column, *settings.label_columns)
        choices = [texts] if settings.text_pair_column else [images, texts]
        return [tuple(dict.fromkeys(choice)) for choice in choices]

    def learns_from_images(self, settings: PrepareSettings, columns: Sequence[str]) -> bool:
        return columns[0] == settings.image_column and not settings.text_pair_column

    def model_problems(self, settings: PrepareSettings, columns: Sequence[str], model: str) -> list[str]:
        are_images = self.learns_from_images(settings, columns)
        fit: Task = ImageClassificationTask(self.name) if are_images else TextClassificationTask(self.name)
        if model not in self.models or model in fit.models:
            return []
        kind = f"the {'images' if are_images else 'texts'} in {columns[0]!r}"
        return [f"model is {model!r}, and {settings.source} is learned from {kind}. Give {', '.join(fit.models)}."]

    def may_nest(self, settings: PrepareSettings, column: str, kind: str) -> bool:
        return column == settings.image_column or super().may_nest(settings, column, kind)

"""Serves multi-label classification: images and texts, read as the classifiers of one class read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_pipelines.artifacts.dataset import CLASSES
from gpu_pipelines.serving.predictor import Inputs, Predictor
from gpu_pipelines.serving.preparation import Pending
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.classification.predictions import ClassPredictor, checked_top_k
from gpu_pipelines.tasks.image_classification.predictor import ImageClassifier
from gpu_pipelines.tasks.multi_label_classification.answers import as_answer
from gpu_pipelines.tasks.multi_label_classification.recipe import MultiLabelClassification, is_of_images
from gpu_pipelines.tasks.text_classification.predictor import TextClassifier


def _reader_of(directory: Path) -> type[ClassPredictor]:
    return ImageClassifier if is_of_images(directory) else TextClassifier


class MultiLabelClassifier(Predictor):
    """A classifier of images or texts that may be of several classes; see `Predictor`."""

    parameters = ClassPredictor.parameters
    answer = {  # noqa: RUF012 (read only)
        "type": "object",
        "properties": {
            "labels": {"type": "array", "items": {"type": "string"}},
            "scores": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        },
        "required": ["labels", "scores"],
    }

    def __init__(self, directory: Path, settings: ServerSettings, device: torch.device) -> None:
        self.device = device
        self._recipe = MultiLabelClassification.for_exported(directory)
        self._reader: Any = _reader_of(directory)(directory, settings, device)
        self._model = self._reader.network
        self.labels = list(self._reader.labels)
        self.field, self.pair, self.example = self._reader.field, self._reader.pair, self._reader.example

    @classmethod
    def inputs_of(cls, directory: Path) -> Inputs:
        return _reader_of(directory).inputs_of(directory)

    def checked(self, parameters: Mapping[str, Any]) -> int:
        return checked_top_k(parameters, len(self.labels))

    def read(self, instance: Any, parameters: int) -> Pending:
        pending: Pending = self._reader.read(instance, parameters)
        return pending

    def pending_of(self, value: Any, parameters: int) -> Pending:
        pending: Pending = self._reader.pending_of(value, parameters)
        return pending

    def rows_of(self, values: Sequence[Any], parameters: int) -> list[Any]:
        found: list[Any] = self._reader.rows_of(values, parameters)
        return found

    def predict(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        columns = {**self.columns(rows), CLASSES: np.zeros((len(rows), len(self.labels)), np.uint8)}
        with torch.inference_mode():
            found = self._recipe.predict(self._model, self._recipe.batch(columns, self.device)).cpu().numpy()
        return [as_answer(each, self.labels, row.top_k) for each, row in zip(found, rows, strict=True)]

    def columns(self, rows: Sequence[Any]) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = self._reader.columns(rows)
        return found

    def rows_of_dataset(self, columns: Mapping[str, np.ndarray]) -> list[Any]:
        found: list[Any] = self._reader.rows_of_dataset(columns)
        return found

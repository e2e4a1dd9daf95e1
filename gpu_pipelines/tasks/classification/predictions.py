"""The predictions of classifiers, whatever they classify."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gpu_pipelines.numbers import finite_or_none
from gpu_pipelines.serving.predictor import Predictor, tensor
from gpu_pipelines.serving.request_body import require_keys, whole_parameter


class ClassPredictor(Predictor):
    """A classifier; it answers with the class and the scores of the requested number of classes."""

    parameters = {"top_k": {"type": "integer", "minimum": 0}}  # noqa: RUF012 (read only)
    answer = {  # noqa: RUF012 (read only)
        "type": "object",
        "properties": {
            "label": {"type": "string"},
            "scores": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        },
        "required": ["label", "scores"],
    }
    outputs = (("label", "BYTES", [-1]), ("scores", "FP64", [-1, -1]), ("labels", "BYTES", [-1, -1]))

    _recipe: Any
    _model: Any

    @abstractmethod
    def columns(self, rows: Sequence[Any]) -> dict[str, np.ndarray]:
        """The rows of requests as those of a dataset."""

    def predict(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        batch = self._recipe.batch(self.columns(rows), self.device)
        with torch.inference_mode():
            probabilities = self._recipe.predict(self._model, batch).cpu().numpy()
        return [class_prediction(found, self.labels, row.top_k) for found, row in zip(probabilities, rows, strict=True)]

    def checked(self, parameters: Mapping[str, Any]) -> int:
        return checked_top_k(parameters, len(self.labels))

    def tensors(self, predictions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """`label`, `scores` (the greatest first) and `labels` (what each score is of)."""
        rows = len(predictions)
        scores = [list(each["scores"].values()) for each in predictions]
        shape = [rows, len(scores[0])]
        return [
            tensor("label", "BYTES", [rows], [each["label"] for each in predictions]),
            tensor("scores", "FP64", shape, [value for row in scores for value in row]),
            tensor("labels", "BYTES", shape, [label for each in predictions for label in each["scores"]]),
        ]


def checked_top_k(parameters: Mapping[str, Any], classes: int) -> int:
    """The number of scores to return; all if it is not given.

    Raises:
        WrongRequest: it is not such a number, or there are other parameters.
    """
    require_keys(parameters, ("top_k",), "parameters")
    return min(whole_parameter(parameters, "top_k", classes, 1_000_000), classes)


def class_prediction(probabilities: np.ndarray, labels: Sequence[str], top_k: int) -> dict[str, Any]:
    """The most probable class, and the `top_k` greatest probabilities, the greatest first."""
    order = np.argsort(-probabilities, kind="stable")
    scores = {labels[place]: finite_or_none(probabilities[place]) for place in order[:top_k]}
    return {"label": labels[order[0]], "scores": scores}

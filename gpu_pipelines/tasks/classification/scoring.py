"""Scores class probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_pipelines.evaluation.metrics.classification import ClassificationScores
from gpu_pipelines.evaluation.scoring import WORST_KEPT, Columns, Scoring
from gpu_pipelines.tasks.instances import rows_to_send

NOT_A_CLASS = "none (not a number)"


class ClassificationScoring(Scoring):
    """Takes class probabilities of shape (rows, classes)."""

    rows_at_once = 256

    def width(self, labels: list[str]) -> int:
        return len(labels)

    def shape(self, rows: int, labels: list[str]) -> str:
        return f"class probabilities of shape ({rows}, {len(labels)})"

    def aligned(self, predicted: np.ndarray, labels: list[str], recipe: Any) -> np.ndarray:
        return by_label(predicted, labels, self.dataset.manifest.labels)

    def scores(self, predicted: np.ndarray, split: str) -> ClassificationScores:
        labels = self.dataset.split(split).column("label")
        return ClassificationScores.of(predicted, labels, len(self.dataset.manifest.labels))

    def worst(self, scores: ClassificationScores) -> list[dict[str, Any]]:
        """The wrong predictions that the model was surest of."""
        names = self.dataset.manifest.labels
        wrong = np.flatnonzero(~scores.right)
        surest = wrong[np.argsort(-scores.confidence[wrong], kind="stable")][:WORST_KEPT]
        rows = [int(row) for row in surest]
        return [
            {
                "row": row,
                "source": source,
                "label": names[scores.labels[row]],
                "predicted": [*names, NOT_A_CLASS][scores.predicted[row]],
                "probability": round(float(scores.confidence[row]), 4),
            }
            for row, source in zip(rows, self.dataset.split("test").sources(rows), strict=True)
        ]

    def examples(self, rows: Columns) -> tuple[list[dict[str, Any]], list[Columns]] | None:
        return rows_to_send(rows, self.dataset.tokenizer)

    def prediction(self, predicted: np.ndarray, labels: list[str], instance: dict[str, Any]) -> dict[str, Any]:
        scores = dict(zip(labels, predicted.astype(float).tolist(), strict=True))
        return {"label": labels[int(predicted.argmax())], "scores": scores}


def by_label(probabilities: np.ndarray, has: list[str], wanted: list[str]) -> np.ndarray:
    """Reorders the columns to the `wanted` labels; the largest of other labels is one more column, the last.

    Their sum would be that of no class: a row's most probable class is what the model predicts.
    """
    if has == wanted:
        return probabilities
    place = {label: index for index, label in enumerate(wanted)}
    matched = np.zeros((len(probabilities), len(wanted) + 1), dtype=probabilities.dtype)
    for column, label in enumerate(has):
        into = matched[:, place.get(label, len(wanted))]
        np.maximum(into, probabilities[:, column], out=into)
    return matched

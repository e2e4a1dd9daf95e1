"""Scores the probabilities of classes if a row may have several, or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import CLASSES
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.evaluation.metrics.classification import SMALLEST_PROBABILITY
from gpu_pipelines.evaluation.metrics.counts import (
    FOUND,
    RIGHT,
    TRUE,
    averages,
    figures_of_each,
    least_and_mean,
    moved_of_kinds,
)
from gpu_pipelines.evaluation.scores import SummedScores
from gpu_pipelines.evaluation.scoring import WORST_KEPT, Columns, Scoring
from gpu_pipelines.evaluation.statistics.bootstrap import Resampled
from gpu_pipelines.evaluation.statistics.moved import ShiftCheck
from gpu_pipelines.tasks.instances import rows_to_send
from gpu_pipelines.tasks.multi_label_classification.answers import as_answer, is_found

_EXACT, _LOSS, _ROWS = range(-3, 0)
#: Whole numbers up to here, and so the counts of so many rows, are exact in float32.
_EXACT_IN_FLOAT32 = 1 << 24
#: Counts or probabilities that are in memory as floats at once: rows may be of thousands of classes.
_CELLS_AT_ONCE = 8_000_000


def _some_at_once(rows: int, columns: int) -> Iterator[slice]:
    """The rows, some at a time."""
    size = max(1, _CELLS_AT_ONCE // max(1, columns))
    return (slice(start, start + size) for start in range(0, rows, size))


@dataclass(frozen=True)
class MultiLabelScores(SummedScores):
    """Classes of rows.

    Attributes:
        sums: float64 (rows, 3): whether all classes of the row are right, its mean binary cross entropy, and 1.
        classes: their names.
        counts: uint8 (rows, classes, 3): of each class whether it was found where it is one, was found, and is one.
        probabilities: float32 (rows, classes).
    """

    classes: tuple[str, ...]
    counts: np.ndarray
    probabilities: np.ndarray

    @classmethod
    def of(cls, probabilities: np.ndarray, true: np.ndarray, classes: Sequence[str]) -> MultiLabelScores:
        """Scores probabilities (rows, classes) against 1 for the classes that rows are of, and 0 for others.

        A model that has diverged returns NaN: it finds nothing, and has no loss.
        """
        there, found = true > 0, is_found(probabilities)
        counts = np.empty((*true.shape, 3), np.uint8)
        counts[..., RIGHT], counts[..., FOUND], counts[..., TRUE] = found & there, found, there
        sums = np.ones((len(true), 3))
        sums[:, _EXACT] = (found == there).all(axis=1) & np.isfinite(probabilities).all(axis=1)
        for some in _some_at_once(*true.shape):
            of_truth = np.where(there[some], probabilities[some], 1 - probabilities[some]).astype(np.float64)
            sums[some, _LOSS] = -np.log(np.clip(of_truth, SMALLEST_PROBABILITY, 1.0)).mean(axis=1)
        return cls(sums, tuple(classes), counts, probabilities)

    def subset(self, rows: np.ndarray) -> MultiLabelScores:
        return MultiLabelScores(self.sums[rows], self.classes, self.counts[rows], self.probabilities[rows])

    @property
    def total(self) -> np.ndarray:
        return np.concatenate([self._of_each.ravel(), self.sums.sum(axis=0)])

    def totals(self, weights: np.ndarray) -> np.ndarray:
        kind = np.float32 if self.rows < _EXACT_IN_FLOAT32 else np.float64
        drawn, counts = weights.astype(kind), self.counts.reshape(self.rows, -1)
        of_counts = np.zeros((len(weights), counts.shape[1]), kind)
        for some in _some_at_once(*counts.shape):
            of_counts += drawn[:, some] @ counts[some].astype(kind)
        return np.concatenate([of_counts, weights @ self.sums], axis=1)

    @property
    def right(self) -> np.ndarray:
        """Bool (rows,): whether all classes of a row are right."""
        return self.sums[:, _EXACT] > 0

    def right_by(self, metric: str) -> np.ndarray | None:
        return self.right if metric == "exact_match" else None

    def of_totals(self, totals: np.ndarray) -> Resampled:
        """Precision, recall and F1 over all classes of all rows, the mean F1 of the classes, and means over rows."""
        rows = totals[:, _ROWS]
        return {
            **averages(totals[:, :_EXACT].reshape(len(totals), len(self.classes), 3)),
            "exact_match": totals[:, _EXACT] / rows,
            "log_loss": totals[:, _LOSS] / rows,
        }

    def details(self) -> dict[str, Any]:
        """Figures of each class."""
        return {"parts": self._by_class}

    def figures(self) -> dict[str, float]:
        return least_and_mean(self._by_class)

    def moved(self, recorded: Evaluation, labels: Sequence[str], kept: Sequence[str]) -> list[ShiftCheck]:
        return moved_of_kinds(self.classes, self._of_classes, recorded, "classes")

    def _of_classes(self, names: Sequence[str]) -> MultiLabelScores:
        places = [self.classes.index(name) for name in names]
        return MultiLabelScores.of(self.probabilities[:, places], self.counts[:, places, TRUE], names)

    @property
    def _of_each(self) -> np.ndarray:
        """Float64 (classes, 3): `counts` of all rows."""
        return self.counts.sum(axis=0, dtype=np.float64)

    @property
    def _by_class(self) -> list[dict[str, Any]]:
        return figures_of_each(self._of_each, self.classes, "rows")


class MultiLabelScoring(Scoring):
    """Takes the probability of each class, (rows, classes)."""

    rows_at_once = 256

    @property
    def _classes(self) -> list[str]:
        return list(self.dataset.manifest.preprocessing[CLASSES])

    def width(self, labels: list[str]) -> None:
        return None

    def shape(self, rows: int, labels: list[str]) -> str:
        return f"probabilities of shape ({rows}, {len(self._classes)})"

    def aligned(self, predicted: np.ndarray, labels: list[str], recipe: Any) -> np.ndarray:
        """In the order of the dataset's classes; a class that the model does not know is found in no row."""
        wanted, has = self._classes, getattr(recipe, "classes", self._classes)
        if has == wanted:
            return predicted
        found = np.zeros((len(predicted), len(wanted)), dtype=predicted.dtype)
        for place, name in enumerate(wanted):
            if name in has:
                found[:, place] = predicted[:, has.index(name)]
        return found

    def scores(self, predicted: np.ndarray, split: str) -> MultiLabelScores:
        return MultiLabelScores.of(predicted, self._true(split), self._classes)

    def _true(self, split: str) -> np.ndarray:
        return self.dataset.split(split).column(CLASSES)

    def worst(self, scores: MultiLabelScores) -> list[dict[str, Any]]:
        test, true = self.dataset.split("test"), self._true("test") > 0
        found = is_found(scores.probabilities)
        wrong = (found != true).sum(axis=1)
        rows = [int(row) for row in np.lexsort((-scores.sums[:, _LOSS], -wrong))[:WORST_KEPT] if wrong[row]]
        return [
            {
                "row": row,
                "source": source,
                "missed or wrong": int(wrong[row]),
                "true": self._named(true[row]),
                "found": self._named(found[row]),
            }
            for row, source in zip(rows, test.sources(rows), strict=True)
        ]

    def _named(self, marks: np.ndarray) -> str:
        return ", ".join(name for name, mark in zip(self._classes, marks, strict=True) if mark) or "none"

    def examples(self, rows: Columns) -> tuple[list[dict[str, Any]], list[Columns]] | None:
        return rows_to_send(rows, self.dataset.tokenizer)

    def prediction(self, predicted: np.ndarray, labels: list[str], instance: dict[str, Any]) -> dict[str, Any]:
        return as_answer(predicted, labels, len(predicted))

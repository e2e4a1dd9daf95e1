"""Metrics of a classifier from its class probabilities, with bootstrap confidence intervals.

All but the log loss are functions of the confusion matrix, so resampling the rows is drawing its cells from a
multinomial distribution: its cost does not grow with the rows. The tests hold each metric
against scikit-learn, whose import alone would take longer than the whole evaluation of a small model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_pipelines.components.evaluation.bootstrap import RESAMPLES, Interval, interval

# Probabilities are float32; a smaller one is not told from 0. scikit-learn's log_loss clips at the same place.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class ClassificationScores:
    """Predictions of a classifier on labelled rows.

    Attributes:
        confusion: int64 (classes, classes + 1): rows by true class and predicted class; the last column counts
            predictions that are none of the labels: of a class that only a champion knows, or not a number.
        losses: float64 (rows,): -ln of the probability of the true class.
    """

    confusion: np.ndarray
    losses: np.ndarray

    @classmethod
    def of(cls, probabilities: np.ndarray, labels: np.ndarray, classes: int) -> ClassificationScores:
        """Scores probabilities (rows, classes or classes + 1) against labels (rows,)."""
        finite, predicted = predictions(probabilities, classes)
        cells = np.bincount(labels.astype(np.int64) * (classes + 1) + predicted, minlength=classes * (classes + 1))
        right = np.where(finite, probabilities[np.arange(len(labels)), labels], 0.0).astype(np.float64)
        losses = -np.log(np.clip(right, SMALLEST_PROBABILITY, 1.0))
        return cls(cells.reshape(classes, classes + 1), losses)

    @property
    def rows(self) -> int:
        return len(self.losses)

    def metrics(self) -> dict[str, float]:
        """All metrics by name. Averages over classes are over those that have rows."""
        values = {name: float(value[0]) for name, value in _matrix_metrics(self.confusion[None]).items()}
        return {**values, "log_loss": float(self.losses.mean())}

    def per_class(self) -> list[dict[str, float | int]]:
        """Rows, precision, recall and F1 of each class; 0 where one is not defined."""
        rows, precision, recall, f1 = _by_class(self.confusion[None].astype(np.float64))
        columns = zip(rows[0], precision[0], recall[0], f1[0], strict=True)
        return [{"rows": int(n), "precision": float(p), "recall": float(r), "f1": float(f)} for n, p, r, f in columns]

    def intervals(self, seed: int = 0) -> dict[str, Interval]:
        """Each metric as `{"value", "low", "high"}`: a 95% percentile interval over 1,000 resamples of the rows."""
        generator = np.random.default_rng(seed)
        resampled: dict[str, list[np.ndarray]] = {}
        used = np.flatnonzero(self.confusion)
        shares = self.confusion.ravel()[used] / self.rows
        for size in _chunks(RESAMPLES, self.confusion.size):
            cells = np.zeros((size, self.confusion.size), dtype=np.int64)
            cells[:, used] = generator.multinomial(self.rows, shares, size=size)
            for name, values in _matrix_metrics(cells.reshape(size, *self.confusion.shape)).items():
                resampled.setdefault(name, []).append(values)
        resampled["log_loss"] = [self._resampled_loss(generator) for _ in range(RESAMPLES)]
        return {name: interval(value, np.hstack(resampled[name])) for name, value in self.metrics().items()}

    def details(self) -> dict[str, Any]:
        """Figures of each class, and the confusion matrix."""
        return {"per_class": self.per_class(), "confusion": self.confusion[:, :-1].tolist()}

    def _resampled_loss(self, generator: np.random.Generator) -> np.ndarray:
        return self.losses[generator.integers(0, self.rows, self.rows)].mean()


def predictions(probabilities: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rows of probabilities (rows, classes or more) are numbers, and each row's most probable class.

    A model that has diverged gives NaN, which argmax takes for the first class; here it is `classes`, none of them.
    """
    finite = np.isfinite(probabilities).all(axis=1)
    return finite, np.where(finite, probabilities.argmax(axis=1), classes)


def _chunks(total: int, cells: int) -> list[int]:
    """Resamples at a time, so that no array has more than about ten million cells."""
    size = max(1, min(total, 10_000_000 // cells))
    return [min(size, total - start) for start in range(0, total, size)]


def _by_class(confusion: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows, precision, recall and F1, each (matrices, classes), of matrices (matrices, classes, classes + 1)."""
    classes = confusion.shape[1]
    right = np.diagonal(confusion[:, :, :classes], axis1=1, axis2=2)
    rows = confusion.sum(axis=2)
    predicted = confusion[:, :, :classes].sum(axis=1)
    return rows, _share(right, predicted), _share(right, rows), _share(2 * right, rows + predicted)


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(np.shape(part), dtype=np.float64), where=whole > 0)


def _matrix_metrics(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """Metrics of many confusion matrices (matrices, classes, classes + 1): arrays (matrices,) by name."""
    confusion = confusion.astype(np.float64)
    rows, _, recall, f1 = _by_class(confusion)
    present = rows > 0
    counted = np.maximum(present.sum(axis=1), 1)
    right = np.trace(confusion[:, :, : confusion.shape[1]], axis1=1, axis2=2)
    return {
        "accuracy": _share(right, rows.sum(axis=1)),
        "macro_f1": (f1 * present).sum(axis=1) / counted,
        "macro_recall": (recall * present).sum(axis=1) / counted,
        "min_recall": np.where(present, recall, np.inf).min(axis=1),
    }

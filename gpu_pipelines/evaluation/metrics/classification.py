"""Metrics of a classifier from its class probabilities, with bootstrap confidence intervals.

The tests hold each metric against scikit-learn, whose import alone would take longer than the whole evaluation of a
small model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.evaluation import MATRIX_CLASSES, Evaluation
from gpu_pipelines.evaluation.metrics.counts import least_and_mean, share
from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.evaluation.statistics.bootstrap import Resampled, resample
from gpu_pipelines.evaluation.statistics.moved import (
    LEAST_FALL,
    LEAST_FALL_OF_A_CLASS,
    LEVEL,
    MOST_NAMED,
    ShiftCheck,
    fallen,
)

# Probabilities are float32; a smaller one is not told from 0. scikit-learn's log_loss clips at the same place.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).eps)
BINS = 15
PAIRS_KEPT = 20


@dataclass(frozen=True)
class ClassificationScores(Scores):
    """Predictions of a classifier on labelled rows.

    Attributes:
        probabilities: float32 (rows, classes), or one column more for everything that is not a label. A row that is not
            made of finite numbers is all 0.
        labels: int64 (rows,): true classes.
        predicted: int64 (rows,): predicted classes; `classes` stands for no label: for a class that only a champion
            knows, or not a number.
        confidence: float64 (rows,): probability of the predicted class.
        losses: float64 (rows,): -ln of the probability of the true class.
        classes: number of labels.
    """

    probabilities: np.ndarray
    labels: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    losses: np.ndarray
    classes: int

    @classmethod
    def of(cls, probabilities: np.ndarray, labels: np.ndarray, classes: int) -> ClassificationScores:
        """Scores probabilities (rows, classes or classes + 1) against labels (rows,)."""
        finite, predicted = predictions(probabilities, classes)
        known = probabilities if finite.all() else np.where(finite[:, None], probabilities, 0.0)
        right = known[np.arange(len(labels)), labels].astype(np.float64)
        losses = -np.log(np.clip(right, SMALLEST_PROBABILITY, 1.0))
        confidence = known.max(axis=1).astype(np.float64)
        return cls(known, labels.astype(np.int64), predicted.astype(np.int64), confidence, losses, classes)

    @property
    def rows(self) -> int:
        return len(self.losses)

    @property
    def right(self) -> np.ndarray:
        """Bool (rows,): whether the predicted class is the true one."""
        return self.predicted == self.labels

    @cached_property
    def confusion(self) -> np.ndarray:
        """Rows by true class and predicted class, int64 (classes, classes + 1); the last column is no label."""
        cells = np.bincount(
            self.labels * (self.classes + 1) + self.predicted, minlength=self.classes * (self.classes + 1)
        )
        return cells.reshape(self.classes, self.classes + 1)

    def subset(self, rows: np.ndarray) -> ClassificationScores:
        """The scores of some of the rows."""
        return ClassificationScores(
            self.probabilities[rows],
            self.labels[rows],
            self.predicted[rows],
            self.confidence[rows],
            self.losses[rows],
            self.classes,
        )

    def metrics(self) -> dict[str, float]:
        """All metrics by name. Averages over classes are over those that have rows."""
        return self._metrics

    @cached_property
    def _metrics(self) -> dict[str, float]:
        auc = macro_roc_auc(self.probabilities, self.labels, self.classes)
        found = self._of_weights(np.ones((1, self.rows), dtype=np.int64), np.array([auc]))
        return {name: float(values[0]) for name, values in found.items()}

    def per_class(self) -> list[dict[str, float | int]]:
        """Rows, precision, recall and F1 of each class; 0 where one is not defined."""
        right, rows, predicted = (
            np.bincount(each, minlength=self.classes)[: self.classes]
            for each in (self.labels[self.right], self.labels, self.predicted)
        )
        figures = share(right, predicted), share(right, rows), share(2 * right, rows + predicted)
        columns = zip(rows, *figures, strict=True)
        return [{"rows": int(n), "precision": float(p), "recall": float(r), "f1": float(f)} for n, p, r, f in columns]

    @cached_property
    def resampled(self) -> Resampled:
        """Each metric over 1,000 resamples of the rows; for the ROC-AUC, its first-order approximation."""
        influence = macro_roc_auc_influence(self.probabilities, self.labels, self.classes)
        auc = self._metrics["roc_auc"]

        def metrics(weights: np.ndarray) -> Resampled:
            return self._of_weights(weights, np.clip(auc + weights @ influence / self.rows, 0.0, 1.0))

        return resample(metrics, self.rows)

    def confused(self) -> list[list[int]]:
        """The pairs of classes that are confused most: numbers of the true and the predicted class, and the rows."""
        wrong = ~self.right & (self.predicted < self.classes)
        pairs, rows = np.unique(self.labels[wrong] * self.classes + self.predicted[wrong], return_counts=True)
        most = np.argsort(-rows, kind="stable")[:PAIRS_KEPT]
        return [[*map(int, divmod(pairs[place], self.classes)), int(rows[place])] for place in most]

    def details(self) -> dict[str, Any]:
        """Figures of each class, the confusion matrix, the pairs that are confused most, and the reliability curve."""
        return {
            "per_class": self.per_class(),
            "confusion": self.confusion[:, :-1].tolist() if self.classes <= MATRIX_CLASSES else [],
            "confused": self.confused(),
            "calibration": reliability(self.confidence, self.right),
        }

    def one_answer(self) -> dict[str, float]:
        rows = np.bincount(self.labels, minlength=self.classes)
        return {"accuracy": rows.max() / self.rows, "macro_recall": 1 / np.count_nonzero(rows), "roc_auc": 0.5}

    def figures(self) -> dict[str, float]:
        return least_and_mean(self.per_class())

    def moved(self, recorded: Evaluation, labels: Sequence[str], kept: Sequence[str]) -> list[ShiftCheck]:
        """Accuracy and recalls on rows of the classes that the champion knows; half of the level each."""
        if "per_class" not in recorded.test:
            return []
        before = {
            label: (round(figures["recall"] * figures["rows"]), figures["rows"])
            for label, figures in zip(recorded.labels, recorded.test["per_class"], strict=True)
        }
        rows = np.bincount(self.labels, minlength=len(labels)).tolist()
        right = np.bincount(self.labels[self.right], minlength=len(labels)).tolist()
        now = dict(zip(labels, zip(right, rows, strict=True), strict=True))
        both = [label for label in kept if before[label][1] and now[label][1]]
        if not both:
            return []
        totals = [tuple(np.sum([counts[label] for label in both], axis=0).tolist()) for counts in (before, now)]
        accuracy = fallen("its accuracy", totals[0], totals[1], LEVEL / 2, LEAST_FALL)
        level = LEVEL / 2 / len(both)
        recalls = [
            fallen(f"its recall of {label}", before[label], now[label], level, LEAST_FALL_OF_A_CLASS) for label in both
        ]
        worst = [check for check in sorted(recalls, key=lambda check: -(check.low or 0.0)) if check.moved]
        return [accuracy, *worst[:MOST_NAMED]]

    def _of_weights(self, weights: np.ndarray, auc: np.ndarray) -> Resampled:
        """Metrics of weighted rows, weights int64 (sets, rows): arrays (sets,) by name."""
        right, rows, predicted = self._class_counts(weights)
        present = rows > 0
        counted = np.maximum(present.sum(axis=1), 1)
        recall, f1 = share(right, rows), share(2 * right, rows + predicted)
        total = weights.sum(axis=1)
        order, starts, _ = self._by_bin
        gaps = np.add.reduceat((weights * (self.confidence - self.right))[:, order], starts, axis=1)
        return {
            "accuracy": right.sum(axis=1) / total,
            "macro_f1": (f1 * present).sum(axis=1) / counted,
            "macro_recall": (recall * present).sum(axis=1) / counted,
            "min_recall": np.where(present, recall, np.inf).min(axis=1),
            "roc_auc": auc,
            "ece": np.abs(gaps).sum(axis=1) / total,
            "log_loss": weights @ self.losses / total,
        }

    def _class_counts(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each class that has rows: those predicted right, all of them, and rows predicted to be of it."""
        order, starts, classes = self._by_label
        rows = np.add.reduceat(weights[:, order], starts, axis=1)
        right = np.add.reduceat((weights * self.right)[:, order], starts, axis=1)
        order, starts, taken = self._by_prediction
        predicted = np.zeros((len(weights), self.classes + 1), dtype=np.int64)
        predicted[:, taken] = np.add.reduceat(weights[:, order], starts, axis=1)
        return right, rows, predicted[:, classes]

    @cached_property
    def _by_label(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _groups(self.labels)

    @cached_property
    def _by_prediction(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _groups(self.predicted)

    @cached_property
    def _by_bin(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return _groups(bin_of(self.confidence))


def predictions(probabilities: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rows of probabilities (rows, classes or more) are numbers, and each row's most probable class.

    A model that has diverged returns NaN, which argmax takes for the first class; here it becomes `classes`, no label.
    """
    finite = np.isfinite(probabilities).all(axis=1)
    return finite, np.where(finite, probabilities.argmax(axis=1), classes)


def _groups(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An order of the rows in which those of one key stand together, where each key begins, and the keys."""
    order = np.argsort(keys, kind="stable")
    found, starts = np.unique(keys[order], return_index=True)
    return order, starts, found


def bin_of(confidence: np.ndarray) -> np.ndarray:
    """The bin of each probability, int64; one at the edge belongs to the bin below, as in the source."""
    return np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)


def reliability(confidence: np.ndarray, right: np.ndarray) -> list[dict[str, Any]]:
    """Whether a classifier is right as often as it says: the non-empty bins, each with its range, rows, mean
    confidence and accuracy. The ECE is the mean distance of the latter two.

    Source: Guo et al. 2017, https://arxiv.org/abs/1706.04599, sections 2 and 4: 15 bins of equal width by the
    probability of the predicted class.

    Args:
        confidence: float64 (rows,): probability of the predicted class.
        right: bool (rows,): whether it is the true one.
    """
    bins = bin_of(confidence)
    rows = np.bincount(bins, minlength=BINS)
    sums = np.bincount(bins, confidence, BINS), np.bincount(bins, right, BINS)
    return [
        {
            "low": round(number / BINS, 4),
            "high": round((number + 1) / BINS, 4),
            "rows": int(rows[number]),
            "confidence": float(sums[0][number] / rows[number]),
            "accuracy": float(sums[1][number] / rows[number]),
        }
        for number in np.flatnonzero(rows)
    ]


def macro_roc_auc(probabilities: np.ndarray, labels: np.ndarray, classes: int) -> float:
    """The area under the ROC curve, one class against the rest: the mean over the classes that have rows, and others
    beside them; NaN if no class has.

    Args:
        probabilities: (rows, classes or more), without NaN.
        labels: int64 (rows,).
        classes: number of labels.
    """
    found = [_auc(probabilities[:, label], labels == label) for label in _ranked(labels, classes)]
    return float(np.mean(found)) if found else float("nan")


def macro_roc_auc_influence(probabilities: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """How much more of each row would change the macro ROC-AUC, to first order: float64 (rows,), with mean 0.

    Source: DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), pages 837-845.

    The AUC of rows with weights w is about `auc + (w @ influence) / rows`.
    """
    ranked = _ranked(labels, classes)
    total = np.zeros(len(labels))
    for label in ranked:
        total += _influence(probabilities[:, label], labels == label)
    return total / max(1, len(ranked))


def _ranked(labels: np.ndarray, classes: int) -> list[int]:
    rows = np.bincount(labels, minlength=classes)[:classes]
    return [int(label) for label in np.flatnonzero((rows > 0) & (rows < len(labels)))]


def _auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Wilcoxon's statistic: the share of pairs of a positive and a negative in which the positive scores higher."""
    ordered, ours = np.sort(scores), scores[positive]
    below = np.searchsorted(ordered, ours, "left") + np.searchsorted(ordered, ours, "right")
    # Pairs of two positives are as often won as lost.
    won = below.sum() / 2 - len(ours) ** 2 / 2
    return float(won / (len(ours) * (len(scores) - len(ours))))


def _influence(scores: np.ndarray, positive: np.ndarray) -> np.ndarray:
    ours, others = np.sort(scores[positive]), np.sort(scores[~positive])
    found = np.empty(len(scores))
    found[positive] = _share_below(others, scores[positive])
    found[~positive] = 1 - _share_below(ours, scores[~positive])
    auc = found[positive].mean()
    found -= auc
    found[positive] *= len(scores) / len(ours)
    found[~positive] *= len(scores) / len(others)
    return found


def _share_below(ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
    below = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    return below / (2 * len(ordered))

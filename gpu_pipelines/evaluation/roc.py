"""The area under the ROC curve, one class against the rest, averaged over the classes.

Source: DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), pages 837-845, for what each row contributes.
"""

from __future__ import annotations

import numpy as np


def macro_roc_auc(probabilities: np.ndarray, labels: np.ndarray, classes: int) -> float:
    """The mean over the classes that have rows, and others beside them; NaN where no class has.

    Args:
        probabilities: (rows, classes or more), without NaN.
        labels: int64 (rows,).
        classes: number of labels.
    """
    found = [_auc(probabilities[:, label], labels == label) for label in _ranked(labels, classes)]
    return float(np.mean(found)) if found else float("nan")


def macro_roc_auc_influence(probabilities: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """How much more of each row would change the macro ROC-AUC, to first order: float64 (rows,), with mean 0.

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

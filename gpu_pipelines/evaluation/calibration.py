"""Whether a classifier is right as often as it says: the reliability curve, of which the ECE is the mean distance.

Source: Guo et al. 2017, https://arxiv.org/abs/1706.04599, sections 2 and 4: 15 bins of equal width by the probability
of the predicted class.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BINS = 15


def bin_of(confidence: np.ndarray, bins: int) -> np.ndarray:
    """The bin of each probability, int64; one at the edge belongs to the bin below, as in the source."""
    return np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)


def reliability(confidence: np.ndarray, right: np.ndarray) -> list[dict[str, Any]]:
    """Bins that have rows, each with its range, rows, mean confidence and accuracy.

    Args:
        confidence: float64 (rows,): probability of the predicted class.
        right: bool (rows,): whether it is the true one.
    """
    bins = bin_of(confidence, BINS)
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

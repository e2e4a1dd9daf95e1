"""Bootstrap confidence intervals: how much a metric would vary with other rows of the same kind.

The same seed and the same number of rows draw the same rows, so that two models scored on the same rows are compared on
the same resamples: their difference is that of pairs.

Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import numpy as np

from gpu_pipelines.numbers import finite_or_none

RESAMPLES = 1000
CONFIDENCE = 0.95
# Weights that are in memory at once.
_CELLS = 2_000_000

#: A metric as `evaluation.json` holds it: `value`, `low`, `high`; None is what is not a number, or not known.
Interval = dict[str, float | None]
#: Metrics of several resamples by name, each (resamples,).
Resampled = dict[str, np.ndarray]


def resample(metrics: Callable[[np.ndarray], Resampled], rows: int, seed: int = 0) -> Resampled:
    """Metrics of 1,000 resamples, each of as many rows as there are, drawn with replacement.

    Args:
        metrics: takes weights, int64 (resamples, rows): how often each row was drawn.
        rows: their number; may be 0, as for written text in a slice.
        seed: of the drawing.
    """
    found: dict[str, list[np.ndarray]] = {}
    for weights in [_all_weights(rows, seed)] if rows * RESAMPLES <= _CELLS else _weights(rows, seed):
        for name, values in metrics(weights).items():
            found.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in found.items()}


def _weights(rows: int, seed: int) -> Iterator[np.ndarray]:
    """How often each row was drawn in each resample, some resamples at a time."""
    generator = np.random.default_rng(seed)
    most = max(1, min(RESAMPLES, _CELLS // max(1, rows)))
    for start in range(0, RESAMPLES, most):
        some = min(most, RESAMPLES - start)
        drawn = generator.integers(0, max(1, rows), (some, rows)) + np.arange(some)[:, None] * rows
        yield np.bincount(drawn.ravel(), minlength=some * rows).reshape(some, rows)


@lru_cache(maxsize=2)
def _all_weights(rows: int, seed: int) -> np.ndarray:
    """The same at once, for rows that are few; a model and the champion are scored on the same ones."""
    (weights,) = _weights(rows, seed)
    weights.setflags(write=False)
    return weights


def fewest_rows(confidence: float) -> int:
    """The fewest rows for a confidence: five rows are all on one side of 0 by chance more often than 5%.

    Resamples of fewer rows would be too sure, since they have only rows of the sample.

    Args:
        confidence: such as 0.95, of an interval with two ends.
    """
    return math.ceil(1 - math.log2(1 - confidence))


def interval(value: float, resampled: np.ndarray, rows: int) -> Interval:
    """A metric with its 95% percentile interval; too few rows have none.

    Resampled minima lie below the minimum of the sample (`min_recall` of many classes), so an interval is widened to
    hold its own value. If a resample has no value, such as `r2` of rows with equal numbers, no interval is known.

    Args:
        value: of all rows.
        resampled: float64 (resamples,): the same for rows drawn with replacement.
        rows: their number.
    """
    if not math.isfinite(value) or rows < fewest_rows(CONFIDENCE):
        return without_interval(value)
    low, high = percentiles(resampled, CONFIDENCE)
    # Python's min and max of a value and NaN are the value.
    low, high = np.minimum(value, low), np.maximum(value, high)
    return {"value": value, "low": finite_or_none(low), "high": finite_or_none(high)}


def percentiles(resampled: np.ndarray, confidence: float) -> tuple[float, float]:
    """The two values between which a share of the resampled ones lies, such as 0.95."""
    tail = (1 - confidence) / 2 * 100
    low, high = np.percentile(resampled, [tail, 100 - tail])
    return float(low), float(high)


def without_interval(value: float) -> Interval:
    """A metric without a known interval."""
    return {"value": finite_or_none(value), "low": None, "high": None}


def json_metrics(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics for JSON: None instead of NaN and infinity."""
    return {name: finite_or_none(value) for name, value in metrics.items()}

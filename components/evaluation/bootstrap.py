"""Bootstrap confidence intervals: how much a metric would vary with other rows of the same kind.

Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gpu_pipelines.numbers import finite_or_none

RESAMPLES = 1000
CONFIDENCE = 0.95
TAIL = (1 - CONFIDENCE) / 2 * 100

#: A metric as `evaluation.json` holds it: `value`, `low`, `high`; None is what is not a number, or not known.
Interval = dict[str, float | None]


def interval(value: float, resampled: np.ndarray) -> Interval:
    """A metric with its 95% percentile interval.

    Resampled minima lie below the minimum of the sample (`min_recall` of many classes), so an interval is widened to
    hold its own value.

    Args:
        value: of all rows.
        resampled: float64 (resamples,): the same of rows drawn with replacement.
    """
    if not math.isfinite(value):
        return without_interval(value)
    low, high = np.percentile(resampled, [TAIL, 100 - TAIL])
    return {"value": value, "low": finite_or_none(min(value, low)), "high": finite_or_none(max(value, high))}


def without_interval(value: float) -> Interval:
    """A metric of which no interval is known."""
    return {"value": finite_or_none(value), "low": None, "high": None}


def json_metrics(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics as JSON can hold them: None in place of NaN and infinity."""
    return {name: finite_or_none(value) for name, value in metrics.items()}

"""A model beside the champion on the same rows: paired differences with intervals, and McNemar's test."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.evaluation.statistics.bootstrap import (
    CONFIDENCE,
    Interval,
    fewest_rows,
    interval,
    percentiles,
    without_interval,
)
from gpu_pipelines.evaluation.statistics.two_samples import log_choose

#: Metrics that differ by less than this share of them differ by the rounding of their sums.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Comparison:
    """Two models on the same rows.

    Attributes:
        ours: the scores of the model.
        theirs: the scores of the champion.
        version: number of the champion.
    """

    ours: Scores
    theirs: Scores
    version: int

    def difference(self, metric: str) -> float:
        """The metric of the model minus that of the champion, 0 if sums in another order would make them equal; NaN
        if one of them is not known."""
        ours, theirs = (scores.metrics().get(metric, math.nan) for scores in (self.ours, self.theirs))
        return 0.0 if math.isclose(ours, theirs, rel_tol=_ROUNDING) else ours - theirs

    def ends(self, metric: str, confidence: float) -> tuple[float, float] | None:
        """The interval of a difference, by paired bootstrap; None if only the two values are known, or for few rows.

        Args:
            metric: its name.
            confidence: such as 0.95, between both ends.
        """
        resampled = self._resampled(metric)
        few = self.ours.rows_of(metric) < fewest_rows(confidence)
        if resampled is None or few or not math.isfinite(self.difference(metric)):
            return None
        low, high = percentiles(resampled, confidence)
        return (low, high) if math.isfinite(low) and math.isfinite(high) else None

    def mcnemar(self, metric: str = "accuracy") -> dict[str, Any] | None:
        """McNemar's exact test: rows that only one model gets right, and the two-sided p-value; None for other metrics.

        If both models were right equally often, either would be the one that is right with probability 1/2 in a row in
        which only one of them is.
        Source: McNemar, Psychometrika 12 (1947); exact form: Fagerland et al., https://doi.org/10.1186/1471-2288-13-91.
        """
        ours, theirs = self.ours.right_by(metric), self.theirs.right_by(metric)
        if ours is None or theirs is None:
            return None
        ours_alone, theirs_alone = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
        p_value = sign_test(ours_alone, theirs_alone)
        return {"this_model_alone_right": ours_alone, "champion_alone_right": theirs_alone, "p_value": p_value}

    def summary(self) -> dict[str, Any]:
        """What `evaluation.json` says about the champion: its metrics, the differences, and McNemar's test."""
        differences: dict[str, Interval] = {}
        for metric in self.ours.metrics():
            value, resampled = self.difference(metric), self._resampled(metric)
            differences[metric] = (
                without_interval(value) if resampled is None else interval(value, resampled, self.ours.rows_of(metric))
            )
        found: dict[str, Any] = {"version": self.version, "metrics": self.theirs.intervals()}
        found |= {"confidence": CONFIDENCE, "differences": differences}
        test = self.mcnemar()
        return found | {"mcnemar": test} if test else found

    def _resampled(self, metric: str) -> np.ndarray | None:
        ours, theirs = self.ours.resampled, self.theirs.resampled
        if ours is None or theirs is None or metric not in ours or metric not in theirs:
            return None
        with np.errstate(invalid="ignore"):
            return ours[metric] - theirs[metric]


@dataclass(frozen=True)
class Incomparable:
    """A champion that could not be scored on these rows.

    Attributes:
        version: its number.
        why: the reason, a sentence.
    """

    version: int
    why: str

    def summary(self) -> dict[str, Any]:
        """What `evaluation.json` says about it."""
        return {"version": self.version, "metrics": {}, "not_compared": self.why}


def sign_test(wins: int, losses: int) -> float:
    """The two-sided p-value of so many wins and losses, if both were equally probable."""
    total, fewer = wins + losses, min(wins, losses)
    if wins == losses:
        return 1.0
    log_half = total * math.log(0.5)
    terms = (log_choose(total, count) + log_half for count in range(fewer + 1))
    return min(1.0, 2 * math.fsum(math.exp(term) for term in terms))

"""The port of scores: what all kinds have in common, so that the evaluation need not know which kind it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.evaluation.statistics.bootstrap import (
    Interval,
    Resampled,
    interval,
    json_metrics,
    resample,
    without_interval,
)
from gpu_pipelines.evaluation.statistics.moved import ShiftCheck, worsened

if TYPE_CHECKING:
    from typing_extensions import Self


class Scores(ABC):
    """How a model did on the rows of a split.

    Attributes:
        row_name: name of the rows, for people.
    """

    row_name: ClassVar[str] = "test rows"

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of rows scored."""

    @property
    @abstractmethod
    def resampled(self) -> Resampled | None:
        """Each metric over resamples of the rows, the same for all models on as many rows; None if unknown."""

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """All metrics by name; NaN or infinity if a model has diverged."""

    @abstractmethod
    def subset(self, rows: np.ndarray) -> Self:
        """The scores of some of the rows; not called if `resampled` is None.

        Args:
            rows: indices of the rows, int, or a mask of them, bool (rows,).
        """

    def intervals(self) -> dict[str, Interval]:
        """Each metric as `{"value", "low", "high"}`: a 95% percentile interval over 1,000 resamples of the rows."""
        resampled = self.resampled
        if resampled is None:
            return {name: without_interval(value) for name, value in self.metrics().items()}
        return {name: interval(value, resampled[name], self.rows_of(name)) for name, value in self.metrics().items()}

    def details(self) -> dict[str, Any]:
        """What `evaluation.json` says about the test rows besides `rows` and `metrics`."""
        return {}

    def figures(self) -> dict[str, float]:
        """Further figures of the rows to gate on, by name."""
        return {}

    def one_answer(self) -> dict[str, float]:
        """Metrics of the best model that gives the same answer for every row, as far as it is known."""
        return {}

    @property
    def right(self) -> np.ndarray | None:
        """Bool (rows,): which rows are predicted right; None if a row is not simply right or wrong."""
        return None

    def why_unknown(self, metric: str) -> str:
        """Why a metric is NaN although the model returned numbers for each row; empty if it is not.

        Args:
            metric: its name.
        """
        return ""

    def rows_of(self, metric: str) -> int:
        """Number of rows that a metric is computed from.

        Args:
            metric: its name.
        """
        return self.rows

    def right_by(self, metric: str) -> np.ndarray | None:
        """Which rows are right, for a metric that is the share of right rows; None for other metrics.

        Args:
            metric: its name.

        Returns:
            Bool (rows,), or None.
        """
        return self.right if metric == "accuracy" else None

    def paired_with(self, other: Scores) -> tuple[Scores, Scores]:
        """These scores and those of another model, in the form in which they are compared.

        Args:
            other: the scores of the other model on the same rows.
        """
        return self, other

    def moved(self, recorded: Evaluation, labels: Sequence[str], kept: Sequence[str]) -> list[ShiftCheck]:
        """Whether these scores of a champion are worse than those that it was registered with.

        Args:
            recorded: its evaluation at registration.
            labels: the classes of the rows now.
            kept: those of the classes that it knows.
        """
        return []


@dataclass(frozen=True)
class SummedScores(Scores):
    """Scores whose metrics follow from sums over the rows, and so do intervals, slices and comparisons.

    Resampling draws rows, not what is counted in them: the tokens of a text are not independent of each other. A metric
    that is a ratio of sums weighs a long row more than a short one.

    Attributes:
        sums: the numbers to add up, float64 (rows, columns).
    """

    sums: np.ndarray

    @abstractmethod
    def of_totals(self, totals: np.ndarray) -> Resampled:
        """Metrics from sums over sets of rows.

        Args:
            totals: the sums of `columns` over each set of rows, float64 (sets of rows, columns).

        Returns:
            For each metric its values, float64 (sets of rows,).
        """

    @property
    def rows(self) -> int:
        return len(self.sums)

    @property
    def columns(self) -> np.ndarray:
        """The columns whose totals `of_totals` takes, float64 (rows, columns)."""
        return self.sums

    @property
    def total(self) -> np.ndarray:
        """The total of all rows, float64 (columns,)."""
        total: np.ndarray = self.columns.sum(axis=0)
        return total

    def totals(self, weights: np.ndarray) -> np.ndarray:
        """The totals of sets of rows, float64 (sets of rows, columns).

        Args:
            weights: how often each set has each row, float64 (sets of rows, rows).
        """
        totals: np.ndarray = weights @ self.columns
        return totals

    def subset(self, rows: np.ndarray) -> Self:
        return replace(self, sums=self.sums[rows])

    def metrics(self) -> dict[str, float]:
        return {name: float(values[0]) for name, values in self.of_totals(self.total[None]).items()}

    @cached_property
    def resampled(self) -> Resampled:
        """Each metric over 1,000 resamples of the rows."""

        def metrics(weights: np.ndarray) -> Resampled:
            with np.errstate(invalid="ignore"):
                totals = self.totals(weights.astype(np.float64))
            return self.of_totals(totals)

        return resample(metrics, self.rows)

    def moved(self, recorded: Evaluation, labels: Sequence[str], kept: Sequence[str]) -> list[ShiftCheck]:
        return self._worsened(recorded, recorded.select_by, recorded.more_is_better)

    def _worsened(self, recorded: Evaluation, metric: str, more_is_better: bool, unit: str = "") -> list[ShiftCheck]:
        before: Mapping[str, Any] | None = recorded.test["metrics"].get(metric)
        if before is None or metric not in self.metrics():
            return []
        found = worsened(metric, before, self.intervals()[metric], more_is_better, unit)
        return [found] if found else []


def summary(scores: Scores) -> dict[str, Any]:
    """The entry `test` of `evaluation.json`."""
    one_answer = scores.one_answer()
    known = {"one_answer": json_metrics(one_answer)} if one_answer else {}
    return {"rows": scores.rows, "metrics": scores.intervals(), **known, **scores.details()}

"""Scores predicted numbers and their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_pipelines.evaluation.scores import SummedScores
from gpu_pipelines.evaluation.scoring import WORST_KEPT, Columns, Scoring
from gpu_pipelines.evaluation.statistics.bootstrap import Resampled, json_metrics
from gpu_pipelines.numbers import figure, finite_or_none
from gpu_pipelines.tasks.instances import rows_to_send
from gpu_pipelines.tasks.regression.task import INPUT, TARGET

ROWS, ERROR, ABSOLUTE, SQUARE, OFFSET, OFFSET_SQUARE, INSIDE = range(7)
#: A spread that is less than this share of the squares that it is a difference of is their rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class RegressionScores(SummedScores):
    """Errors of numbers. Metrics of several numbers are means over them, as in scikit-learn.

    Attributes:
        sums: float64 (rows, 7 × targets): for each number 1, the error, its absolute and its square, its distance from
            the mean of all rows and the square of it, and whether its interval holds it.
        targets: names of the numbers.
    """

    targets: tuple[str, ...]

    @classmethod
    def of(cls, predicted: np.ndarray, true: np.ndarray, targets: tuple[str, ...]) -> RegressionScores:
        """Scores numbers and the ends of their intervals (rows, 3 × targets) against the true ones (rows, targets)."""
        value, low, high = np.split(predicted.astype(np.float64), 3, axis=1)
        true = true.astype(np.float64)
        error, offset = value - true, true - true.mean(axis=0)
        inside = np.where(np.isfinite(error), (low <= true) & (true <= high), np.nan)
        columns = [np.ones_like(true), error, abs(error), error**2, offset, offset**2, inside]
        return cls(np.concatenate(columns, axis=1), targets)

    def of_totals(self, totals: np.ndarray) -> Resampled:
        return {name: values.mean(axis=1) for name, values in self._by_target(totals).items()}

    def one_answer(self) -> dict[str, float]:
        """Those of the mean of the rows."""
        of = self.sums.sum(axis=0).reshape(7, len(self.targets))
        spread = np.maximum(of[OFFSET_SQUARE] / of[ROWS] - (of[OFFSET] / of[ROWS]) ** 2, 0.0)
        return {"rmse": float(np.sqrt(spread).mean()), "r2": 0.0}

    def details(self) -> dict[str, Any]:
        """The metrics of each number, if there are several."""
        if len(self.targets) == 1:
            return {}
        found = self._by_target(self.sums.sum(axis=0)[None])
        return {
            "parts": [
                {"name": name, **json_metrics({metric: values[0, place] for metric, values in found.items()})}
                for place, name in enumerate(self.targets)
            ]
        }

    def _by_target(self, totals: np.ndarray) -> dict[str, np.ndarray]:
        """Metrics of totals: arrays (sets, targets) by name."""
        of = totals.reshape(len(totals), 7, len(self.targets)).transpose(1, 0, 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = of[OFFSET_SQUARE] - of[OFFSET] ** 2 / of[ROWS]
            return {
                "rmse": np.sqrt(of[SQUARE] / of[ROWS]),
                "mae": of[ABSOLUTE] / of[ROWS],
                # Of rows that are all the same nothing can be explained.
                "r2": np.where(spread > _ROUNDING * of[OFFSET_SQUARE], 1 - of[SQUARE] / spread, np.nan),
                "coverage": of[INSIDE] / of[ROWS],
            }


class RegressionScoring(Scoring):
    """Takes (rows, 3 × targets): the numbers, and where their intervals begin and end."""

    rows_at_once = 256

    @property
    def _targets(self) -> tuple[str, ...]:
        return tuple(self.dataset.manifest.preprocessing["targets"])

    def width(self, labels: list[str]) -> int:
        return 3 * len(self._targets)

    def shape(self, rows: int, labels: list[str]) -> str:
        return f"({rows}, {self.width(labels)}): numbers, and where their intervals begin and end"

    def scores(self, predicted: np.ndarray, split: str) -> RegressionScores:
        return RegressionScores.of(predicted, self.dataset.split(split).column(TARGET), self._targets)

    def worst(self, scores: RegressionScores) -> list[dict[str, Any]]:
        error = scores.sums.reshape(len(scores.sums), 7, len(self._targets))[:, ERROR]
        test = self.dataset.split("test")
        true = test.column(TARGET).astype(np.float64)
        spread = np.where(true.std(axis=0) > 0, true.std(axis=0), 1.0)
        farthest = np.nan_to_num((abs(error) / spread).max(axis=1), nan=np.inf)
        rows = [int(row) for row in np.argsort(-farthest, kind="stable")[:WORST_KEPT]]
        return [
            {
                "row": row,
                "source": source,
                "true": self._named(true[row]),
                "predicted": self._named(true[row] + error[row]),
                "error in deviations": f"{farthest[row]:.2f}",
            }
            for row, source in zip(rows, test.sources(rows), strict=True)
        ]

    def examples(self, rows: Columns) -> tuple[list[dict[str, Any]], list[Columns]] | None:
        if sent := rows_to_send(rows, self.dataset.tokenizer):
            return sent
        names = self.dataset.manifest.preprocessing["inputs"]
        columns = [{name: values[[row]] for name, values in rows.items()} for row in range(len(rows[TARGET]))]
        return [{"values": {name: float(each[f"{INPUT}{name}"][0]) for name in names}} for each in columns], columns

    def prediction(self, predicted: np.ndarray, labels: list[str], instance: dict[str, Any]) -> dict[str, Any]:
        return as_answer(predicted, self._targets)

    def _named(self, numbers: np.ndarray) -> str:
        if len(self._targets) == 1:
            return figure(float(numbers[0]))
        return ", ".join(f"{name} {figure(float(n))}" for name, n in zip(self._targets, numbers, strict=True))


def as_answer(predicted: np.ndarray, targets: tuple[str, ...]) -> dict[str, Any]:
    """A row of predictions (3 × targets,) as the server's answer; null for NaN."""
    parts = np.split(predicted, 3)
    return {
        name: {target: finite_or_none(n) for target, n in zip(targets, part, strict=True)}
        for name, part in zip(("values", "low", "high"), parts, strict=True)
    }

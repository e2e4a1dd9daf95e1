"""Metrics of a model that is scored by its loss, such as a language model, with bootstrap confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_pipelines.components.evaluation.bootstrap import RESAMPLES, Interval, interval


@dataclass(frozen=True)
class LikelihoodScores:
    """Losses of a model on rows that each have some terms, such as the tokens of a text.

    Attributes:
        sums: float64 (rows, 3): of each row the sum of its losses in nats, its number of terms, and how many of them
            were predicted right; the last is NaN in all rows where that has no meaning.
    """

    sums: np.ndarray

    @classmethod
    def of(cls, predicted: np.ndarray) -> LikelihoodScores:
        """Scores what a recipe's `predict` gave for all rows, (rows, 3)."""
        return cls(predicted.astype(np.float64))

    @property
    def rows(self) -> int:
        return len(self.sums)

    def metrics(self) -> dict[str, float]:
        """Mean loss per term in nats, its exponential, and the share of terms predicted right where it is known."""
        return {name: float(value[0]) for name, value in self._of_totals(self.sums.sum(axis=0)[None]).items()}

    def intervals(self, seed: int = 0) -> dict[str, Interval]:
        """Each metric as `{"value", "low", "high"}`: a 95% percentile interval over 1,000 resamples of the rows.

        Rows are drawn, not terms: the tokens of a text are not independent of each other. A metric is a ratio of sums,
        so a long row weighs more than a short one.
        """
        generator = np.random.default_rng(seed)
        drawn = (self.sums[generator.integers(0, self.rows, self.rows)].sum(axis=0) for _ in range(RESAMPLES))
        resampled = self._of_totals(np.stack(list(drawn)))
        return {name: interval(value, resampled[name]) for name, value in self.metrics().items()}

    def details(self) -> dict[str, Any]:
        """The number of terms."""
        return {"terms": int(self.sums[:, 1].sum())}

    def _of_totals(self, totals: np.ndarray) -> dict[str, np.ndarray]:
        """Metrics of totals (sets of rows, 3): arrays (sets of rows,) by name."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            loss = totals[:, 0] / totals[:, 1]
            found = {"loss": loss, "perplexity": np.exp(loss)}
            if not np.isnan(self.sums[:, 2]).all():
                found["token_accuracy"] = totals[:, 2] / totals[:, 1]
        return found

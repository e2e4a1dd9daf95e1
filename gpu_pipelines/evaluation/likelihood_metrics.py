"""Metrics of a model that is scored by its loss, such as a language model, with bootstrap confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.evaluation.bootstrap import Resampled
from gpu_pipelines.evaluation.moved import ShiftCheck
from gpu_pipelines.evaluation.scores import SummedScores

LOSS, TERMS, RIGHT = range(3)


@dataclass(frozen=True)
class LikelihoodScores(SummedScores):
    """Losses of a model on rows that each have some terms, such as the tokens of a text.

    Attributes:
        sums: float64 (rows, 3): of each row the sum of its losses in nats, its number of terms, and how many of them
            were predicted right; the last is NaN in all rows where that has no meaning.
        text_bytes: float64 (rows,): bytes of the text that the terms are; None where they are no text.
        completions: whether a row is one completion of a prompt, which is right if all its terms are.
    """

    text_bytes: np.ndarray | None = None
    completions: bool = False

    @classmethod
    def of(
        cls, predicted: np.ndarray, text_bytes: np.ndarray | None = None, completions: bool = False
    ) -> LikelihoodScores:
        """Scores what a recipe's `predict` gave for all rows, (rows, 3)."""
        return cls(predicted.astype(np.float64), text_bytes, completions)

    def subset(self, rows: np.ndarray) -> LikelihoodScores:
        """The scores of some of the rows."""
        sizes = None if self.text_bytes is None else self.text_bytes[rows]
        return LikelihoodScores(self.sums[rows], sizes, self.completions)

    def details(self) -> dict[str, Any]:
        """The number of terms."""
        return {"terms": int(self.sums[:, TERMS].sum())}

    def moved(self, recorded: Evaluation, labels: Sequence[str], kept: Sequence[str]) -> list[ShiftCheck]:
        """The mean loss, whatever the champion was chosen by."""
        return self._worsened(recorded, "loss", more_is_better=False, unit=" nats")

    @cached_property
    def columns(self) -> np.ndarray:
        scored = self.sums[:, TERMS] > 0
        whole = scored & (self.sums[:, RIGHT] == self.sums[:, TERMS])
        sizes = np.zeros(self.rows) if self.text_bytes is None else self.text_bytes
        return np.column_stack([self.sums, sizes, scored, whole])

    def of_totals(self, totals: np.ndarray) -> Resampled:
        """Mean loss per term in nats, its exponential, bits per byte of text, and the shares of terms and of
        completions that are predicted right, each where it is known."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            loss = totals[:, LOSS] / totals[:, TERMS]
            found = {"loss": loss, "perplexity": np.exp(loss)}
            if self.text_bytes is not None:
                found["bits_per_byte"] = totals[:, LOSS] / math.log(2) / totals[:, 3]
            if not np.isnan(self.sums[:, RIGHT]).all():
                found["token_accuracy"] = totals[:, RIGHT] / totals[:, TERMS]
                if self.completions:
                    found["completion_accuracy"] = totals[:, 5] / totals[:, 4]
        return found

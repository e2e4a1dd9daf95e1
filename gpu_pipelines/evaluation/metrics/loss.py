"""Scores models by their loss: language models, and tasks of a user's own; metrics have intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.evaluation.scores import SummedScores
from gpu_pipelines.evaluation.scoring import WORST_KEPT, Scoring
from gpu_pipelines.evaluation.statistics.bootstrap import Resampled
from gpu_pipelines.evaluation.statistics.moved import ShiftCheck

LOSS, TOKENS, RIGHT, BYTES, SCORED, WHOLE = range(6)
#: A row of fewer scored tokens says little when its mean loss is high.
FEWEST_TOKENS = 8


@dataclass(frozen=True)
class LikelihoodScores(SummedScores):
    """Losses of a model on rows of loss tokens: what the loss is a mean over, such as the scored tokens of a text.

    Attributes:
        sums: float64 (rows, 3): of each row the sum of its losses in nats, its number of loss tokens, and how many of
            them were predicted right; the last is NaN in all rows if that has no meaning.
        text_bytes: float64 (rows,): bytes of the text of the loss tokens; None if they are not text.
        completions: whether a row is a completion of a prompt, which is right if all its loss tokens are.
    """

    text_bytes: np.ndarray | None = None
    completions: bool = False

    @classmethod
    def of(
        cls, predicted: np.ndarray, text_bytes: np.ndarray | None = None, completions: bool = False
    ) -> LikelihoodScores:
        """Scores the output of a recipe's `predict` for all rows, (rows, 3)."""
        return cls(predicted.astype(np.float64), text_bytes, completions)

    def subset(self, rows: np.ndarray) -> LikelihoodScores:
        """The scores of some of the rows."""
        sizes = None if self.text_bytes is None else self.text_bytes[rows]
        return LikelihoodScores(self.sums[rows], sizes, self.completions)

    def details(self) -> dict[str, Any]:
        """The number of loss tokens."""
        return {"loss_tokens": int(self.sums[:, TOKENS].sum())}

    def right_by(self, metric: str) -> np.ndarray | None:
        return self.columns[:, WHOLE] > 0 if metric == "completion_accuracy" else None

    def moved(self, recorded: Evaluation, labels: Sequence[str], kept: Sequence[str]) -> list[ShiftCheck]:
        """The mean loss, whichever metric chose the champion."""
        return self._worsened(recorded, "loss", more_is_better=False, unit=" nats")

    @cached_property
    def columns(self) -> np.ndarray:
        scored = self.sums[:, TOKENS] > 0
        whole = scored & (self.sums[:, RIGHT] == self.sums[:, TOKENS])
        sizes = np.zeros(self.rows) if self.text_bytes is None else self.text_bytes
        return np.column_stack([self.sums, sizes, scored, whole])

    def of_totals(self, totals: np.ndarray) -> Resampled:
        """Mean loss per loss token in nats, its exponential, bits per byte of text, and the shares of loss tokens and
        of completions that are predicted right, as far as they are known."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            loss = totals[:, LOSS] / totals[:, TOKENS]
            found = {"loss": loss, "perplexity": np.exp(loss)}
            if self.text_bytes is not None:
                found["bits_per_byte"] = totals[:, LOSS] / math.log(2) / totals[:, BYTES]
            if not np.isnan(self.sums[:, RIGHT]).all():
                found["token_accuracy"] = totals[:, RIGHT] / totals[:, TOKENS]
                if self.completions:
                    found["completion_accuracy"] = totals[:, WHOLE] / totals[:, SCORED]
        return found


class LossScoring(Scoring):
    """Takes (rows, 3): sum of the losses of a row in nats, its loss tokens, and how many of them are right."""

    def width(self, labels: list[str]) -> int:
        return 3

    def shape(self, rows: int, labels: list[str]) -> str:
        return f"({rows}, 3): sum of losses, number of loss tokens, number right"

    def scores(self, predicted: np.ndarray, split: str) -> LikelihoodScores:
        return LikelihoodScores.of(predicted)

    def worst(self, scores: LikelihoodScores) -> list[dict[str, Any]]:
        return self._worst_texts(scores, None) if self.dataset.manifest.tokenizer else []

    def _worst_texts(
        self, scores: LikelihoodScores, documents: tuple[Sequence[int], Sequence[slice]] | None
    ) -> list[dict[str, Any]]:
        """The rows, or documents of rows, of the highest mean loss.

        Args:
            scores: on test.
            documents: row and place of each document, where documents were scored.
        """
        loss_tokens = scores.sums[:, TOKENS]
        enough = loss_tokens >= min(FEWEST_TOKENS, max(1.0, loss_tokens.max(initial=0.0)))
        with np.errstate(divide="ignore", invalid="ignore"):
            loss = np.where(enough, scores.sums[:, LOSS] / loss_tokens, -np.inf)
        numbers = [int(n) for n in np.argsort(-loss, kind="stable")[:WORST_KEPT] if np.isfinite(loss[n])]
        rows = [documents[0][number] for number in numbers] if documents else numbers
        found = []
        for number, row, source in zip(numbers, rows, self.dataset.split("test").sources(rows), strict=True):
            worst = {"row": row, "source": source, "loss": round(float(loss[number]), 4)}
            worst["loss_tokens"] = int(loss_tokens[number])
            if documents:
                worst |= {"start": documents[1][number].start, "stop": documents[1][number].stop}
            found.append(worst)
        return found

"""Scores what has no score but its loss: language models, and tasks of a user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_pipelines.evaluation.likelihood_metrics import LOSS, TERMS, LikelihoodScores
from gpu_pipelines.evaluation.scoring import WORST_KEPT, Scoring

#: A row of fewer scored tokens says little when its mean loss is high.
FEWEST_TERMS = 8


class LossScoring(Scoring):
    """Takes (rows, 3): sum of the losses of a row in nats, number of its terms, and how many were predicted right."""

    def width(self, labels: list[str]) -> int:
        return 3

    def shape(self, rows: int, labels: list[str]) -> str:
        return f"({rows}, 3): sum of losses, number of terms, number right"

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
        terms = scores.sums[:, TERMS]
        enough = terms >= min(FEWEST_TERMS, max(1.0, terms.max(initial=0.0)))
        with np.errstate(divide="ignore", invalid="ignore"):
            loss = np.where(enough, scores.sums[:, LOSS] / terms, -np.inf)
        numbers = [int(n) for n in np.argsort(-loss, kind="stable")[:WORST_KEPT] if np.isfinite(loss[n])]
        rows = [documents[0][number] for number in numbers] if documents else numbers
        found = []
        for number, row, source in zip(numbers, rows, self.dataset.split("test").sources(rows), strict=True):
            worst = {"row": row, "source": source, "loss": round(float(loss[number]), 4), "terms": int(terms[number])}
            if documents:
                worst |= {"start": documents[1][number].start, "stop": documents[1][number].stop}
            found.append(worst)
        return found

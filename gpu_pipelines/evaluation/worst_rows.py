"""The rows of `test` that a model does worst on, for people to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Split
from gpu_pipelines.evaluation.classification_metrics import ClassificationScores
from gpu_pipelines.evaluation.likelihood_metrics import LOSS, TERMS, LikelihoodScores

ROWS_KEPT = 24
NOT_A_CLASS = "none (not a number)"
#: A row of fewer scored tokens says little when its mean loss is high.
FEWEST_TERMS = 8


def worst_classified(scores: ClassificationScores, test: Split, names: list[str]) -> list[dict[str, Any]]:
    """The wrong predictions that the model was surest of."""
    wrong = np.flatnonzero(~scores.right)
    surest = wrong[np.argsort(-scores.confidence[wrong], kind="stable")][:ROWS_KEPT]
    rows = [int(row) for row in surest]
    return [
        {
            "row": row,
            "source": source,
            "label": names[scores.labels[row]],
            "predicted": [*names, NOT_A_CLASS][scores.predicted[row]],
            "probability": round(float(scores.confidence[row]), 4),
        }
        for row, source in zip(rows, test.sources(rows), strict=True)
    ]


def worst_texts(
    scores: LikelihoodScores, test: Split, documents: tuple[Sequence[int], Sequence[slice]] | None
) -> list[dict[str, Any]]:
    """The rows, or documents of rows, of the highest mean loss.

    Args:
        scores: on test.
        test: the split.
        documents: row and place of each document, where documents were scored.
    """
    terms = scores.sums[:, TERMS]
    enough = terms >= min(FEWEST_TERMS, max(1.0, terms.max(initial=0.0)))
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.where(enough, scores.sums[:, LOSS] / terms, -np.inf)
    numbers = [int(n) for n in np.argsort(-loss, kind="stable")[:ROWS_KEPT] if np.isfinite(loss[n])]
    rows = [documents[0][number] for number in numbers] if documents else numbers
    found = []
    for number, row, source in zip(numbers, rows, test.sources(rows), strict=True):
        worst = {"row": row, "source": source, "loss": round(float(loss[number]), 4), "terms": int(terms[number])}
        if documents:
            worst |= {"start": documents[1][number].start, "stop": documents[1][number].stop}
        found.append(worst)
    return found

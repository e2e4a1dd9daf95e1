"""How a model does on parts of the test rows: those of each value of a column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_pipelines.evaluation.bootstrap import json_metrics
from gpu_pipelines.evaluation.scores import Scores

#: Values that have a slice of their own; the rows of all others are one more.
MOST_SLICES = 50
OTHERS = "(all others)"


def slices_of(values: Sequence[str], scores: Scores, champion: Scores | None) -> list[dict[str, Any]]:
    """Rows and metrics of each value, most rows first, beside the champion's on the same rows.

    Args:
        values: of each row, in the order of the scores.
        scores: of the model.
        champion: those of the champion on the same rows, if there is one.
    """
    counts = Counter(values).most_common()
    kept = {value for value, _ in counts[: MOST_SLICES if len(counts) > MOST_SLICES else len(counts)]}
    named = np.array([value if value in kept else OTHERS for value in values], dtype=object)
    found = []
    for value in [value for value, _ in counts if value in kept] + [OTHERS] * (len(counts) > len(kept)):
        rows = np.flatnonzero(named == value)
        part: dict[str, Any] = {"value": value, "rows": len(rows), "metrics": scores.subset(rows).intervals()}
        if champion is not None:
            part["champion"] = json_metrics(champion.subset(rows).metrics())
        found.append(part)
    return found


def slice_figures(slices: Sequence[dict[str, Any]]) -> dict[str, float]:
    """`slices.accuracy.min` and the like: the least and the largest value of each metric over the slices."""
    found: dict[str, float] = {}
    for name in slices[0]["metrics"] if slices else ():
        values = [part["metrics"][name]["value"] for part in slices]
        known = [float("nan") if value is None else value for value in values]
        found[f"slices.{name}.min"], found[f"slices.{name}.max"] = float(np.min(known)), float(np.max(known))
    return found

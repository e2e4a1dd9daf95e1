"""Precision, recall and F1 of kinds that are found in rows, such as entities or several classes of a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.evaluation.scores import SummedScores
from gpu_pipelines.evaluation.statistics.moved import ShiftCheck, gone

#: What is counted of each kind: those found that are there, those found, and those that are there.
RIGHT, FOUND, TRUE = range(3)


def averages(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Precision, recall and F1 over all kinds, and the mean F1 of the kinds that exist or were found.

    Args:
        counts: float64 (sets of rows, kinds, 3).

    Returns:
        For each metric its values, float64 (sets of rows,); 0 if undefined.
    """
    every, present = counts.sum(axis=1), (counts[..., FOUND] + counts[..., TRUE]) > 0
    f1 = share(2 * counts[..., RIGHT], counts[..., FOUND] + counts[..., TRUE])
    return {
        "f1": share(2 * every[:, RIGHT], every[:, FOUND] + every[:, TRUE]),
        "precision": share(every[:, RIGHT], every[:, FOUND]),
        "recall": share(every[:, RIGHT], every[:, TRUE]),
        "macro_f1": share((f1 * present).sum(axis=1), present.sum(axis=1)),
    }


def figures_of_each(counts: np.ndarray, kinds: Sequence[str], what: str) -> list[dict[str, Any]]:
    """For each kind its number, as `what`, and its precision, recall and F1.

    Args:
        counts: float64 (kinds, 3).
        kinds: their names.
        what: name of the number, for people.
    """
    precision, recall = share(counts[:, RIGHT], counts[:, FOUND]), share(counts[:, RIGHT], counts[:, TRUE])
    f1 = share(2 * counts[:, RIGHT], counts[:, FOUND] + counts[:, TRUE])
    figures = zip(kinds, counts[:, TRUE], precision, recall, f1, strict=True)
    return [
        {"name": kind, what: int(n), "precision": float(p), "recall": float(r), "f1": float(f)}
        for kind, n, p, r, f in figures
    ]


def least_and_mean(each: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """`per_class.recall.min` and the like: least and mean figure of the classes that have rows.

    Args:
        each: of the classes, `rows`, `precision`, `recall` and `f1`.
    """
    present = [figures for figures in each if figures["rows"]]
    found = {}
    for name in ("precision", "recall", "f1"):
        values = [float(figures[name]) for figures in present]
        found[f"per_class.{name}.min"] = min(values, default=math.nan)
        found[f"per_class.{name}.mean"] = math.fsum(values) / len(values) if values else math.nan
    return found


def moved_of_kinds(
    kinds: Sequence[str], of_kinds: Callable[[list[str]], SummedScores], recorded: Evaluation, what: str
) -> list[ShiftCheck]:
    """Whether kinds that a champion knew are gone, and its score on the others: it cannot find new kinds.

    Args:
        kinds: those of the data.
        of_kinds: returns the scores of some of them.
        recorded: its evaluation when it was registered.
        what: name of the kinds, for people.
    """
    known = [figures["name"] for figures in recorded.test.get("parts", [])]
    there = [name for name in known if name in kinds]
    found = gone(what, known, kinds)
    worse = SummedScores.moved(of_kinds(there), recorded, [], []) if there else []
    return [*([found] if found else []), *worse]


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """A part of a whole; 0 if the whole is 0."""
    return np.divide(part, whole, out=np.zeros(np.shape(part), dtype=np.float64), where=np.asarray(whole) > 0)

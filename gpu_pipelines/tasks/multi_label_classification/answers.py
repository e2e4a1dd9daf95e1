"""The answer of a multi-label classifier to a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpu_pipelines.numbers import finite_or_none

#: A class is found from this probability on.
THRESHOLD = 0.5


def is_found(probabilities: np.ndarray) -> np.ndarray:
    """Bool, of the same shape: which classes are found."""
    return probabilities >= THRESHOLD


def as_answer(probabilities: np.ndarray, classes: Sequence[str], top_k: int) -> dict[str, Any]:
    """The classes that are found, sorted, and the `top_k` greatest probabilities, the greatest first.

    Args:
        probabilities: (classes,).
        classes: their names.
        top_k: how many scores are given.
    """
    order = np.argsort(-probabilities, kind="stable")
    found = sorted(classes[int(place)] for place in np.flatnonzero(is_found(probabilities)))
    scores = {classes[place]: finite_or_none(probabilities[place]) for place in order[:top_k]}
    return {"labels": found, "scores": scores}

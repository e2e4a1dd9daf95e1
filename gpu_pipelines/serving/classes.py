"""The predictions of classifiers, whatever they classify."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpu_pipelines.serving.request_body import require_keys, whole_parameter


def checked_top_k(parameters: Mapping[str, Any], classes: int) -> int:
    """How many scores are wanted; all where that is not said.

    Raises:
        WrongRequest: it is no such number, or there are other parameters.
    """
    require_keys(parameters, ("top_k",), "parameters")
    return min(whole_parameter(parameters, "top_k", classes, 1_000_000), classes)


def class_prediction(probabilities: np.ndarray, labels: Sequence[str], top_k: int) -> dict[str, Any]:
    """The most probable class, and the `top_k` greatest probabilities, the greatest first."""
    order = np.argsort(-probabilities, kind="stable")
    scores = {labels[place]: _number(probabilities[place]) for place in order[:top_k]}
    return {"label": labels[order[0]], "scores": scores}


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None

"""Checks that predictions over HTTP equal those that were evaluated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_pipelines.artifacts.examples import Examples

#: Tolerance of a probability, and of a loss in nats, or as a share of the loss if it is above 1. The evaluation may
#: have run on a GPU, whose convolutions have 10 bits of mantissa by default (TF32), and the server on a CPU:
#: https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices.
TOLERANCE = 0.005


def differences(examples: Examples, predictions: Sequence[Any]) -> list[str]:
    """The differences, a sentence for each example that has one; empty if all are the same within `TOLERANCE`.

    Args:
        examples: inputs and the predictions of the evaluated model.
        predictions: the server's predictions for the same inputs.
    """
    if len(predictions) != len(examples.predictions):
        return [f"{len(examples.predictions)} instances got {len(predictions)} predictions"]
    found = []
    for number, (expected, got) in enumerate(zip(examples.predictions, predictions, strict=True)):
        if why := _difference(expected, got):
            found.append(f"example {number} of {len(predictions)}: {why}")
    return found


def _difference(expected: Mapping[str, Any], got: Any) -> str:
    if not isinstance(got, Mapping):
        return f"got {str(got)[:80]!r} in place of a prediction"
    label, evaluated = expected.get("label"), expected.get("scores")
    # A task of another package may have scores of another form.
    if not (isinstance(label, str) and isinstance(evaluated, Mapping) and label in evaluated):
        return unlike(expected, got)
    scores: Any = got.get("scores")
    if not isinstance(scores, Mapping):
        return "there are no scores"
    for name, probability in evaluated.items():
        if not _close(scores.get(name), probability, 1.0):
            return f"the score of {name!r} is {_shown(scores.get(name))}, evaluated was {_shown(probability)}"
    # If two classes are practically equal, either may be first.
    behind = evaluated[label] - evaluated.get(got.get("label"), -math.inf)
    return "" if behind <= 2 * TOLERANCE else f"label is {got.get('label')!r}, evaluated was {label!r}"


def unlike(expected: Any, got: Any, name: str = "the prediction") -> str:
    """The difference between two JSON values; empty if there is none.

    Args:
        expected: numbers may differ by `TOLERANCE`, or by that share if they are larger than 1.
        got: may have more keys.
        name: the value's name, for people.
    """
    if isinstance(expected, Mapping):
        if not isinstance(got, Mapping):
            return f"{name} is {str(got)[:80]!r}"
        if missing := [key for key in expected if key not in got]:
            return f"there is no {missing[0]}"
        return next(filter(None, (unlike(value, got[key], key) for key, value in expected.items())), "")
    if isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return f"{name} is {str(got)[:80]!r}, evaluated was {str(expected)[:80]!r}"
        return next(filter(None, (unlike(*each, name) for each in zip(expected, got, strict=True))), "")
    if isinstance(expected, (int, float)) and not isinstance(expected, bool):
        counts = isinstance(expected, int) and isinstance(got, int)
        same = not isinstance(got, bool) and _close(got, expected, 0.0 if counts else max(1.0, abs(expected)))
    else:
        same = expected == got
    return "" if same else f"{name} is {_shown(got)}, evaluated was {_shown(expected)}"


def _close(value: Any, expected: float, scale: float) -> bool:
    return isinstance(value, (int, float)) and abs(value - expected) <= TOLERANCE * scale


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, (int, float)) else str(value)

"""Whether predictions over HTTP are those that were evaluated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_pipelines.artifacts.examples import Examples

#: How far a probability may be off, and a loss in nats, or as a share of it if it is larger than 1. The evaluation may
#: have run on a GPU, whose convolutions have 10 bits of mantissa by default (TF32), and the server on a CPU:
#: https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices.
TOLERANCE = 0.005


def differences(examples: Examples, predictions: Sequence[Any]) -> list[str]:
    """What differs, a sentence for each example that does; empty if all are the same within `TOLERANCE`.

    Args:
        examples: inputs and what the evaluated model gave for them.
        predictions: what the server gave for the same inputs.
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
    if "loss" in expected:
        loss = got.get("loss")
        if not _close(loss, expected["loss"], max(1.0, abs(expected["loss"]))):
            return f"loss is {_shown(loss)}, evaluated was {_shown(expected['loss'])}"
        return "" if got.get("tokens") == expected.get("tokens") else f"{got.get('tokens')} tokens were scored"
    scores: Any = got.get("scores")
    if not isinstance(scores, Mapping):
        return "there are no scores"
    for label, probability in expected["scores"].items():
        if not _close(scores.get(label), probability, 1.0):
            return f"the score of {label!r} is {_shown(scores.get(label))}, evaluated was {_shown(probability)}"
    # Of two classes that are as good as equal either may be the first.
    behind = expected["scores"][expected["label"]] - expected["scores"].get(got.get("label"), -math.inf)
    return "" if behind <= 2 * TOLERANCE else f"label is {got.get('label')!r}, evaluated was {expected['label']!r}"


def _close(value: Any, expected: float, scale: float) -> bool:
    return isinstance(value, (int, float)) and abs(value - expected) <= TOLERANCE * scale


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, (int, float)) else str(value)

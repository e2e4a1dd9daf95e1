"""Whether the data is still what the champion was evaluated on; where it is not, a comparison on it proves nothing.

Two models may both be wrong on damaged rows: on shuffled labels any model is as good as the champion. What the champion
scored when it was evaluated is the one thing that the new rows cannot change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Manifest
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.errors import some_of
from gpu_pipelines.evaluation.classification_metrics import ClassificationScores
from gpu_pipelines.evaluation.gates import GateResult, shown_beside
from gpu_pipelines.evaluation.likelihood_metrics import LikelihoodScores
from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.evaluation.two_samples import (
    Estimate,
    effect_of_shares,
    one_sided,
    same_shares,
    share,
    widened,
)

NO_SHIFT = "the data of the champion"
#: How often each of the tests may say by chance alone that something has moved: one run in a thousand.
LEVEL = 0.001
#: What is less than this does not count, however many rows show it.
LEAST_FALL, LEAST_FALL_OF_A_CLASS, LEAST_RISE, LEAST_EFFECT = 0.01, 0.05, 0.02, 0.1
_MOST_NAMED = 5


@dataclass(frozen=True)
class ShiftCheck:
    """One thing that was looked at.

    Attributes:
        what: what was compared.
        moved: it is another than it was, by more than chance and by more than what counts.
        why: both values, in words.
        before, now: the values; None where there are none.
        low: the least that it has fallen (of a loss, risen), at the confidence of the test; None where not known.
        p_value: of the shares of classes.
    """

    what: str
    moved: bool
    why: str
    before: float | None = None
    now: float | None = None
    low: float | None = None
    p_value: float | None = None


def data_of(manifest: Manifest) -> dict[str, Any]:
    """What `evaluation.json` keeps of a dataset, to be compared with that of a later one.

    The test rows are not counted: those of a fixed test set say nothing about the data that is trained on.
    """
    rows = np.sum([manifest.class_rows[split] for split in ("train", "val")], axis=0) if manifest.labels else []
    class_rows = dict(zip(manifest.labels, (int(count) for count in rows), strict=True))
    return {"features": sorted(manifest.features), "class_rows": class_rows}


def checks(recorded: Evaluation, manifest: Manifest, theirs: Scores | None) -> list[ShiftCheck]:
    """Looks at columns, classes, shares of classes, and the champion's own score.

    Args:
        recorded: the evaluation that was registered with the champion.
        manifest: of the dataset that it is compared on now.
        theirs: its scores on the test rows of that dataset; None where it cannot be scored.
    """
    known = set(manifest.labels)
    kept = [label for label in recorded.labels if label in known]
    found = [
        _gone("columns", (recorded.data or {}).get("features", []), set(manifest.features)),
        _gone("classes", recorded.labels, known),
        _shares(recorded, manifest, kept),
    ]
    if isinstance(theirs, ClassificationScores) and "per_class" in recorded.test:
        found += _scores_of_classifier(recorded, theirs, manifest.labels, kept)
    elif isinstance(theirs, LikelihoodScores):
        found.append(_loss(recorded.test["metrics"].get("loss"), theirs))
    return [check for check in found if check is not None]


def shift_gate(found: Sequence[ShiftCheck], version: int, accepted: bool) -> GateResult:
    """The gate that refuses data which is not what the champion was evaluated on.

    Args:
        found: what was looked at.
        version: number of the champion.
        accepted: the user says that the data is meant to be another.
    """
    moved = [check.why for check in found if check.moved]
    if not found:
        return GateResult(NO_SHIFT, None, None, True, f"nothing is known of the data of version {version}")
    if not moved:
        why = f"nothing has moved beyond chance since version {version} was evaluated"
        shown = [check.why for check in found if check.low is not None or check.p_value is not None]
        return GateResult(NO_SHIFT, None, None, True, f"{why} ({'; '.join(shown)})" if shown else why)
    why = f"the data is not what version {version} was evaluated on: {'; '.join(moved)}"
    if accepted:
        return GateResult(NO_SHIFT, None, None, True, f"{why}; that is meant (accept_shift)")
    return GateResult(NO_SHIFT, None, None, False, f"{why}. Look at the data; if that is meant, give accept_shift=true")


def shift_json(found: Sequence[ShiftCheck], accepted: bool) -> dict[str, Any]:
    """What `evaluation.json` says of it."""
    return {"level": LEVEL, "accepted": accepted, "checks": [asdict(check) for check in found]}


def _gone(what: str, before: Sequence[str], now: set[str]) -> ShiftCheck | None:
    if not before:
        return None
    if gone := [name for name in before if name not in now]:
        return ShiftCheck(what, True, f"{what} that it knew are gone: {some_of(gone, most=_MOST_NAMED)}")
    return ShiftCheck(what, False, f"all {len(before)} {what} that it knew are there")


def _shares(recorded: Evaluation, manifest: Manifest, kept: Sequence[str]) -> ShiftCheck | None:
    """Shares of the classes that both know: of train and val, or of test where no more was recorded."""
    before: Mapping[str, int] = (recorded.data or {}).get("class_rows", {})
    now: Mapping[str, int] = data_of(manifest)["class_rows"]
    if not before and "per_class" in recorded.test:
        before = {n: c["rows"] for n, c in zip(recorded.labels, recorded.test["per_class"], strict=True)}
        now = dict(zip(manifest.labels, manifest.class_rows["test"], strict=True))
    counts = np.array([[before.get(label, 0), now[label]] for label in kept], dtype=np.int64).reshape(-1, 2).T
    if not counts.sum(axis=1).all():
        return None
    p_value, effect = same_shares(*counts), effect_of_shares(*counts)
    moved = p_value < LEVEL and effect >= LEAST_EFFECT
    why = f"shares of classes, p = {p_value:.2g}"
    if moved:
        shares = counts / counts.sum(axis=1, keepdims=True)
        most = np.argsort(-np.abs(shares[1] - shares[0]), kind="stable")[:3]
        named = (f"{kept[n]} from {100 * shares[0, n]:.1f}% to {100 * shares[1, n]:.1f}%" for n in most)
        why = f"shares of classes have moved (p = {p_value:.2g}, Cohen's w = {effect:.2f}): {', '.join(named)}"
    return ShiftCheck("shares of classes", moved, why, p_value=p_value)


def _scores_of_classifier(
    recorded: Evaluation, theirs: ClassificationScores, labels: Sequence[str], kept: Sequence[str]
) -> list[ShiftCheck]:
    """Accuracy and recalls on rows of the classes that it knows; half of the level each."""
    before = {
        label: (round(figures["recall"] * figures["rows"]), figures["rows"])
        for label, figures in zip(recorded.labels, recorded.test["per_class"], strict=True)
    }
    rows = np.bincount(theirs.labels, minlength=len(labels)).tolist()
    right = np.bincount(theirs.labels[theirs.right], minlength=len(labels)).tolist()
    now = dict(zip(labels, zip(right, rows, strict=True), strict=True))
    both = [label for label in kept if before[label][1] and now[label][1]]
    if not both:
        return []
    totals = [tuple(np.sum([counts[label] for label in both], axis=0).tolist()) for counts in (before, now)]
    accuracy = _fallen("its accuracy", totals[0], totals[1], LEVEL / 2, LEAST_FALL)
    level = LEVEL / 2 / len(both)
    recalls = [
        _fallen(f"its recall of {label}", before[label], now[label], level, LEAST_FALL_OF_A_CLASS) for label in both
    ]
    worst = [check for check in sorted(recalls, key=lambda check: -(check.low or 0.0)) if check.moved]
    return [accuracy, *worst[:_MOST_NAMED]]


def _fallen(what: str, before: tuple[int, int], now: tuple[int, int], level: float, least: float) -> ShiftCheck:
    """A share of rows, each given as rows that are right and all rows."""
    z = one_sided(level)
    first, second = share(*before, z), share(*now, z)
    low, fall = first.less(second)[0], first.value - second.value
    values = [shown_beside(first.value, second.value), shown_beside(second.value, first.value)]
    if first.value == second.value:
        values = [f"{first.value:.4f}"] * 2
    moved = low > 0 and fall >= least
    why = f"{what} was {values[0]} on {before[1]:,} rows and is {values[1]} on {now[1]:,}"
    if moved:
        why += f", a fall of at least {low:.4f} at {100 * (1 - level):.6g}% confidence"
    return ShiftCheck(what, moved, why, first.value, second.value, low)


def _loss(recorded: Mapping[str, Any] | None, theirs: LikelihoodScores) -> ShiftCheck | None:
    """The mean loss, whose interval was recorded; one that is not a number any more has risen."""
    z = one_sided(LEVEL)
    before = widened(dict(recorded), z) if recorded else None
    if before is None:
        return None
    measured = theirs.intervals()["loss"]
    now = widened(measured, z)
    if now is None:
        why = f"its loss was {before.value:.4f} and is not a finite number"
        return ShiftCheck("its loss", True, why, before.value, measured["value"])
    return _risen(before, now)


def _risen(before: Estimate, now: Estimate) -> ShiftCheck:
    low, rise = now.less(before)[0], now.value - before.value
    moved = low > 0 and rise >= LEAST_RISE * abs(before.value) and math.isfinite(rise)
    why = f"its loss was {before.value:.4f} and is {now.value:.4f} nats"
    if moved:
        why += f", a rise of at least {low:.4f} at {100 * (1 - LEVEL):.6g}% confidence"
    return ShiftCheck("its loss", moved, why, before.value, now.value, low)

"""Whether the data is still what the champion was evaluated on; where it is not, a comparison on it proves nothing.

Two models may both be wrong on damaged rows: on shuffled labels any model is as good as the champion. What the champion
scored when it was evaluated is the one thing that the new rows cannot change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Manifest
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.evaluation.gates import GateResult
from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.evaluation.statistics.moved import LEVEL, ShiftCheck, gone
from gpu_pipelines.evaluation.statistics.two_samples import effect_of_shares, same_shares

NO_SHIFT = "the data of the champion"
#: What is less than this does not count, however many rows show it.
LEAST_EFFECT = 0.1


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
    recorded = recorded.with_names_of(known)
    kept = [label for label in recorded.labels if label in known]
    found = [
        gone("columns", (recorded.data or {}).get("features", []), set(manifest.features)),
        gone("classes", recorded.labels, known),
        _shares(recorded, manifest, kept),
    ]
    if theirs is not None:
        found += theirs.moved(recorded, manifest.labels, kept)
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

"""Compares a profile with later rows: tests each watched property, and corrects the tests together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpu_pipelines.drift.two_samples import (
    Difference,
    corrected,
    lacking_differ,
    numbers_differ,
    points_differ,
    shares_differ,
)
from gpu_pipelines.profiles.values import Categories, Numbers, Values, Vectors, named_codes

INPUTS, PREDICTIONS, ROWS = "inputs", "predictions", "rows"
#: Bars of a histogram, and most categories to show.
_BARS, _SHOWN = 24, 12
OTHERS = "(all others)"


@dataclass(frozen=True)
class Finding:
    """The result of one test.

    Attributes:
        name: the watched property.
        group: inputs, predictions, or rows (how many are usable).
        test: the test.
        p_value: its own p-value.
        p_corrected: the p-value corrected for all tests.
        effect: the shift of a normal distribution, in standard deviations.
        drifted: whether `p_corrected` is below the level and `effect` reaches the floor.
        before, now: both distributions in words.
        shares: for a figure: `names` of bars, and the shares `before` and `now` of each; empty for none.
    """

    name: str
    group: str
    test: str
    p_value: float
    p_corrected: float
    effect: float
    drifted: bool
    before: str
    now: str
    shares: dict[str, list[Any]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class _Tested:
    name: str
    group: str
    difference: Difference
    before: str
    now: str
    shares: dict[str, list[Any]]


def compared(
    before: Mapping[str, Mapping[str, Values]],
    now: Mapping[str, Mapping[str, Values]],
    unusable: Mapping[str, tuple[tuple[int, int], tuple[int, int]]],
    level: float,
    least_effect: float,
) -> list[Finding]:
    """Tests all properties that both samples have.

    Args:
        before, now: values by group and name.
        unusable: by missing property, for before and for now: rows that lack it, and rows in all.
        level: share of checks without any drift that may raise an alarm.
        least_effect: smallest effect that counts, however many rows show it.

    Returns:
        The findings, drift first, then by the largest effect.
    """
    tested = [
        *(each for group in before for each in _of_group(group, before[group], now.get(group, {}))),
        *(_of_missing(name, *counts) for name, counts in unusable.items()),
    ]
    p_values = corrected([each.difference.p_value for each in tested])
    found = [
        Finding(
            each.name,
            each.group,
            each.difference.test,
            each.difference.p_value,
            p_value,
            each.difference.effect,
            p_value < level and each.difference.effect >= least_effect,
            each.before,
            each.now,
            each.shares,
        )
        for each, p_value in zip(tested, p_values, strict=True)
    ]
    return sorted(found, key=lambda each: (not each.drifted, -each.effect))


def _of_group(group: str, before: Mapping[str, Values], now: Mapping[str, Values]) -> Iterator[_Tested]:
    for name, theirs in before.items():
        if (ours := now.get(name)) is None:
            continue
        if isinstance(theirs, Categories) and isinstance(ours, Numbers):
            ours = named_codes(ours)  # there were only a few before
        if isinstance(theirs, Vectors) and isinstance(ours, Vectors):
            yield _of_points(name, group, theirs, ours)
        elif isinstance(theirs, Numbers) and isinstance(ours, Numbers):
            yield from _of_numbers(name, group, theirs.values, ours.values)
        elif isinstance(theirs, Categories) and isinstance(ours, Categories):
            yield _of_categories(name, group, theirs.values, ours.values)


def _of_points(name: str, group: str, before: Vectors, now: Vectors) -> _Tested:
    difference = points_differ(before.values, now.values)
    return _Tested(name, group, difference, f"{len(before.values):,} points", f"{len(now.values):,} points", {})


def _of_numbers(name: str, group: str, before: np.ndarray, now: np.ndarray) -> Iterator[_Tested]:
    known = before[~np.isnan(before)], now[~np.isnan(now)]
    yield _Tested(name, group, numbers_differ(*known), _told(known[0]), _told(known[1]), _bars(*known))
    missing = len(before) - len(known[0]), len(now) - len(known[1])
    if any(missing):
        yield _of_missing(f"{name} is missing", (missing[0], len(before)), (missing[1], len(now)), group)


def _of_categories(name: str, group: str, before: list[str | None], now: list[str | None]) -> _Tested:
    first, second = (Counter("(none)" if each is None else each for each in values) for values in (before, now))
    names = sorted(first.keys() | second.keys(), key=lambda each: (-first[each], each))
    counts = [np.array([each[name] for name in names]) for each in (first, second)]
    shares = [count / max(count.sum(), 1) for count in counts]
    shown = sorted(range(len(names)), key=lambda place: -max(shares[0][place], shares[1][place]))[:_SHOWN]
    of_shown: dict[str, list[Any]] = {
        "names": [names[place] for place in shown],
        "before": [float(shares[0][place]) for place in shown],
        "now": [float(shares[1][place]) for place in shown],
    }
    if len(names) > len(shown):
        of_shown["names"].append(OTHERS)
        for side in ("before", "now"):
            of_shown[side].append(1 - sum(of_shown[side]))
    moved = int(np.argmax(np.abs(shares[1] - shares[0]))) if names else 0
    told = [f"{names[moved]}: {share[moved]:.1%}" if names else "none" for share in shares]
    return _Tested(name, group, shares_differ(*counts), told[0], told[1], of_shown)


def _of_missing(name: str, before: tuple[int, int], now: tuple[int, int], group: str = ROWS) -> _Tested:
    """Rows that lack something; fewer of them than before is not drift."""
    told = [f"{lacking / max(rows, 1):.2%}" for lacking, rows in (before, now)]
    return _Tested(name, group, lacking_differ(before, now), told[0], told[1], {})


def _told(values: np.ndarray) -> str:
    if not len(values):
        return "none"
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return f"{middle:.3g} ({low:.3g} to {high:.3g})"


def _bars(before: np.ndarray, now: np.ndarray) -> dict[str, list[Any]]:
    """Shares of both samples in common bins, which leave out a hundredth of them at each end."""
    if not len(before) or not len(now):
        return {}
    low, high = np.quantile(np.concatenate([before, now]).astype(np.float64), [0.01, 0.99])
    if not high > low:
        return {}
    edges = np.linspace(low, high, _BARS + 1)
    counts = [np.histogram(np.clip(values, low, high), edges)[0] / len(values) for values in (before, now)]
    return {"names": [float(edge) for edge in edges], "before": counts[0].tolist(), "now": counts[1].tolist()}

"""Whether a score of the champion has become worse, by more than chance and by more than is negligible."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.errors import some_of
from gpu_pipelines.evaluation.statistics.two_samples import falls_by_chance, one_sided, share, widened
from gpu_pipelines.numbers import shown_beside

#: How often each of the tests may say by chance alone that something has moved: one run in a thousand.
LEVEL = 0.001
#: What is less than this does not count, however many rows show it; that of any metric is a share of it.
LEAST_FALL, LEAST_FALL_OF_A_CLASS, LEAST_CHANGE = 0.01, 0.05, 0.02
MOST_NAMED = 5


@dataclass(frozen=True)
class ShiftCheck:
    """One check for a shift of the data.

    Attributes:
        what: what was compared.
        moved: whether it differs, by more than chance and by more than is negligible.
        why: both values, in words.
        before, now: the values; None if there are none.
        low: least fall (for a loss, rise) at the confidence of the test; None if not known.
        p_value: for the shares of classes.
    """

    what: str
    moved: bool
    why: str
    before: float | None = None
    now: float | None = None
    low: float | None = None
    p_value: float | None = None


def gone(what: str, before: Sequence[str], now: Collection[str]) -> ShiftCheck | None:
    """Whether something that a champion knew is no longer in the data; None if it knew nothing.

    Args:
        what: kind of the names, for people.
        before: the names that it knew.
        now: those in the data.
    """
    if not before:
        return None
    if lost := [name for name in before if name not in now]:
        return ShiftCheck(what, True, f"{what} that it knew are gone: {some_of(lost, most=MOST_NAMED)}")
    return ShiftCheck(what, False, f"all {len(before)} {what} that it knew are there")


def fallen(what: str, before: tuple[int, int], now: tuple[int, int], level: float, least: float) -> ShiftCheck:
    """A share of rows, each given as rows that are right and all rows."""
    z = one_sided(level)
    first, second = share(*before, z), share(*now, z)
    low, fall = first.less(second)[0], first.value - second.value
    values = [shown_beside(first.value, second.value), shown_beside(second.value, first.value)]
    if first.value == second.value:
        values = [f"{first.value:.4f}"] * 2
    # At such a level the interval is too narrow where few rows are wrong, or one sample is small beside the other.
    moved = low > 0 and fall >= least and falls_by_chance(before, now) < level
    why = f"{what} was {values[0]} on {before[1]:,} rows and is {values[1]} on {now[1]:,}"
    if moved:
        why += f", a fall of at least {low:.4f} at {100 * (1 - level):.6g}% confidence"
    return ShiftCheck(what, moved, why, first.value, second.value, low)


def worsened(
    metric: str, recorded: Mapping[str, Any], measured: Mapping[str, Any], more_is_better: bool, unit: str = ""
) -> ShiftCheck | None:
    """A metric whose interval was recorded; one that has become NaN is worse.

    None if it never was one, or one of the two has no interval.

    Args:
        metric: its name.
        recorded: value, low and high, when the model was registered.
        measured: the same on the current rows.
        more_is_better: its direction.
        unit: text after a value, for people.
    """
    z = one_sided(LEVEL)
    before, now = widened(dict(recorded), z), widened(dict(measured), z)
    if before is None:
        return None
    what = f"its {metric}"
    if now is None and measured["value"] is not None:
        return None
    if now is None:
        why = f"{what} was {before.value:.4f} and is not a finite number"
        return ShiftCheck(what, True, why, before.value, measured["value"])
    larger, smaller = (before, now) if more_is_better else (now, before)
    low, change = larger.less(smaller)[0], larger.value - smaller.value
    moved = low > 0 and change >= LEAST_CHANGE * abs(before.value) and math.isfinite(change)
    why = f"{what} was {before.value:.4f} and is {now.value:.4f}{unit}"
    if moved:
        way = "a fall" if more_is_better else "a rise"
        why += f", {way} of at least {low:.4f} at {100 * (1 - LEVEL):.6g}% confidence"
    return ShiftCheck(what, moved, why, before.value, now.value, low)

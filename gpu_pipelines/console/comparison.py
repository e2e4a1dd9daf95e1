"""Compares two runs: parameters that differ, figures with their intervals, curves in one chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from gpu_pipelines.component_interface.parameter import shown_value
from gpu_pipelines.console.shown import Curve, Measured, Run

#: The charts drawn first, and the most charts.
_FIRST = ("loss", "val_loss", "accuracy", "val_accuracy", "learning_rate")
_MOST_CHARTS = 6
_MOST_LINES = 4
_LETTERS = "AB"


@dataclass(frozen=True)
class Differing:
    """A parameter of two runs, with its value in each; None where a run has no such parameter."""

    name: str
    values: Sequence[str | None]


@dataclass(frozen=True)
class Figure:
    """A figure of two runs; None where a run has none.

    Attributes:
        name: the name of the metric.
        values: the value of each run.
    """

    name: str
    values: Sequence[Measured | None]

    @property
    def change(self) -> float | None:
        """The second value minus the first."""
        first, second = self.values
        return None if first is None or second is None else second.value - first.value

    @property
    def is_beyond_chance(self) -> bool:
        """Whether the intervals do not overlap."""
        first, second = self.values
        if not (first and second) or None in (first.low, first.high, second.low, second.high):
            return False
        return bool(first.high < second.low or second.high < first.low)  # type: ignore[operator]


def differing(first: Run, second: Run) -> list[Differing]:
    """The parameters that differ between two runs."""
    runs: list[Mapping[str, Any]] = [first.parameters, second.parameters]
    names = dict.fromkeys([*first.parameters, *second.parameters])
    return [
        Differing(name, [shown_value(each[name]) if name in each else None for each in runs])
        for name in names
        if any(name not in each for each in runs) or first.parameters[name] != second.parameters[name]
    ]


def figures(first: Mapping[str, Measured], second: Mapping[str, Measured]) -> list[Figure]:
    """The figures of two runs, those of both runs first."""
    names = dict.fromkeys([*(name for name in first if name in second), *first, *second])
    return [Figure(name, [first.get(name), second.get(name)]) for name in names]


def interval_charts(found: Sequence[Figure]) -> list[Markup]:
    """The figures of both runs, each drawn with its intervals."""
    from gpu_pipelines.reports.charts import Range, interval_chart

    charts: list[Markup] = []
    for each in found:
        first, second = each.values
        if first and second and (first.low is not None or second.low is not None) and len(charts) < _MOST_CHARTS:
            groups = {
                letter: [Range(value.value, value.low, value.high)]
                for letter, value in zip(_LETTERS, (first, second), strict=True)
            }
            charts.append(drawn(interval_chart(each.name, [""], groups)))
    return charts


def curve_charts(first: Sequence[Curve], second: Sequence[Curve]) -> list[Markup]:
    """The logged curves of both runs, in common charts."""
    from gpu_pipelines.reports.charts import Line, line_chart

    named = [
        (f"{letter} {curve.training}".strip(), curve)
        for letter, curves in zip(_LETTERS, (first, second), strict=True)
        for curve in curves[: _MOST_LINES // 2]
    ]
    names = dict.fromkeys(name for _, curve in named for name in curve.points)
    chosen = sorted(names, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))[:_MOST_CHARTS]
    charts: list[Markup] = []
    for name in chosen:
        lines = [
            Line(title, [x for x, _ in curve.points[name]], [y for _, y in curve.points[name]])
            for title, curve in named
            if name in curve.points
        ]
        charts.append(drawn(line_chart(name, "step", lines)))
    return charts


def drawn(svg: Markup) -> Markup:
    """A chart without its style element, which would apply to the whole page."""
    text = str(svg)
    begin, end = text.find("<style"), text.find("</style>")
    if 0 <= begin < end:
        text = text[:begin] + text[end + len("</style>") :]
    return Markup(text)  # noqa: S704 (matplotlib escapes text)

"""Charts as inline SVG in the page's colours, readable on light and dark backgrounds."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

# Stands for the page's text colour while matplotlib draws; no other colour here may equal it.
_INK = "#010203"
_COLORS = ("#3b82f6", "#f59e0b", "#10b981", "#ec4899")
_WRONG = "#e5484d"
_TICKS = 20
_LONGEST_LABEL = 14


@dataclass(frozen=True)
class Line:
    """One line: its name in the legend and its points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False


@dataclass(frozen=True)
class Range:
    """A value with its interval; the ends are None if they are not known."""

    value: float
    low: float | None
    high: float | None


def line_chart(
    title: str, x_label: str, lines: Sequence[Line], *, logarithmic: bool = False, mark: float | None = None
) -> Markup:
    """Draws lines.

    Args:
        title: the subject, with its unit.
        x_label: the label of the x axis.
        lines: at most four.
        logarithmic: y axis in powers of ten if the values are far enough apart; all must be above 0.
        mark: x of a dotted vertical line.

    Returns:
        An `<svg>` element.
    """
    with _drawn(title, 4.6, 2.9) as (axes, svg):
        for line, color in zip(lines, _COLORS, strict=False):
            marker = "o" if line.dots else None
            axes.plot(line.x, line.y, color=color, linewidth=1.8, label=line.name, marker=marker, markersize=4)
        if mark is not None:
            axes.axvline(mark, color=_INK, alpha=0.5, linewidth=1, linestyle=":")
        _set_axes(axes, x_label, lines, logarithmic)
        if len(lines) > 1:
            axes.legend(frameon=False, labelcolor=_INK)
    return svg[0]


def many_lines_chart(
    title: str, x_label: str, lines: Sequence[Line], *, best: str, logarithmic: bool = False
) -> Markup:
    """Draws many lines of the same kind, one of them highlighted.

    Args:
        title: the subject, with its unit.
        x_label: the label of the x axis.
        lines: any number.
        best: name of the highlighted line.
        logarithmic: y axis in powers of ten if the values are far enough apart; all must be above 0.

    Returns:
        An `<svg>` element.
    """
    with _drawn(title, 7.6, 3.4) as (axes, svg):
        for line in sorted(lines, key=lambda each: each.name == best):
            stands_out = line.name == best
            color, width, alpha = (_COLORS[0], 2.2, 1.0) if stands_out else (_INK, 1.0, 0.35)
            marker = "o" if len(line.x) == 1 else None
            axes.plot(line.x, line.y, color=color, linewidth=width, alpha=alpha, marker=marker, markersize=3)
        _set_axes(axes, x_label, lines, logarithmic)
    return svg[0]


def _set_axes(axes: Any, x_label: str, lines: Sequence[Line], logarithmic: bool) -> None:
    _plain_ticks(axes.xaxis)
    _plain_ticks(axes.yaxis)
    if all(float(value).is_integer() for line in lines for value in line.x):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if logarithmic:
        _set_logarithmic(axes, [value for line in lines for value in line.y])
    axes.set_xlabel(x_label, color=_INK)
    axes.grid(color=_INK, alpha=0.12)


@dataclass(frozen=True)
class Axis:
    """One axis of parallel coordinates.

    Attributes:
        name: the name below it.
        ends: the labels at its bottom and its top.
        places: the position of each line on it, from 0 to 1; None if a line skips it.
    """

    name: str
    ends: tuple[str, str]
    places: Sequence[float | None]


def parallel_chart(title: str, axes_of: Sequence[Axis], ranks: Sequence[float], best: int) -> Markup:
    """Draws parallel coordinates: a line for each of many items, from axis to axis.

    Args:
        title: the subject.
        axes_of: at least two.
        ranks: for each line, from 0 for the best to 1; better lines are drawn stronger.
        best: the index of the highlighted line.

    Returns:
        An `<svg>` element.
    """
    with _drawn(title, 7.6, 3.6) as (axes, svg):
        for line in sorted(range(len(ranks)), key=lambda number: (number == best, -ranks[number])):
            points = [(x, axis.places[line]) for x, axis in enumerate(axes_of) if axis.places[line] is not None]
            color, width = (_COLORS[0], 2.4) if line == best else (_INK, 1.0)
            alpha = 1.0 if line == best else 0.1 + 0.5 * (1 - ranks[line])
            axes.plot(*zip(*points, strict=True), color=color, linewidth=width, alpha=alpha)
        for x, axis in enumerate(axes_of):
            axes.axvline(x, color=_INK, alpha=0.4, linewidth=1)
            for end, place, align in ((axis.ends[0], -0.03, "top"), (axis.ends[1], 1.03, "bottom")):
                axes.text(x, place, end, color=_INK, fontsize=9, horizontalalignment="center", verticalalignment=align)
        axes.set_xticks(range(len(axes_of)), [axis.name for axis in axes_of], rotation=20, ha="right", fontsize=9)
        axes.set_yticks([])
        axes.set(xlim=(0, len(axes_of) - 1), ylim=(-0.12, 1.12))
    return svg[0]


def reliability_chart(title: str, bins: Sequence[Mapping[str, Any]]) -> Markup:
    """Draws a classifier's accuracy by its confidence, and the rows at each confidence.

    Args:
        title: the subject.
        bins: the bins, each with `low`, `high`, `rows`, `confidence` and `accuracy`.

    Returns:
        An `<svg>` element.
    """
    with _drawn(title, 4.6, 4.5) as (axes, svg):
        rows = np.array([entry["rows"] for entry in bins], dtype=float)
        axes.plot([0, 1], [0, 1], color=_INK, alpha=0.5, linewidth=1, linestyle=":", label="right as often as it says")
        lows, widths = [entry["low"] for entry in bins], [entry["high"] - entry["low"] for entry in bins]
        # The shares of the rows are small bars at the bottom, on their own scale.
        shares = 0.3 * rows / rows.max()
        axes.bar(lows, shares, widths, align="edge", color=_INK, alpha=0.18, label="share of rows (own scale)")
        sure, right = [entry["confidence"] for entry in bins], [entry["accuracy"] for entry in bins]
        axes.plot(sure, right, color=_COLORS[0], linewidth=1.8, marker="o", markersize=4, label="this model")
        axes.set(xlim=(0, 1), ylim=(0, 1.02), aspect="auto")
        axes.set_xlabel("probability of the predicted class", color=_INK)
        axes.set_ylabel("share that is right", color=_INK)
        axes.grid(color=_INK, alpha=0.12)
        # Below the axes: a line could run through a legend inside of them.
        axes.figure.legend(frameon=False, labelcolor=_INK, loc="outside lower left", fontsize=9)
    return svg[0]


def interval_chart(
    title: str, names: Sequence[str], groups: Mapping[str, Sequence[Range]], *, zero: bool = False
) -> Markup:
    """Draws values with their intervals, one row for each name, with the groups one below the other in it.

    Args:
        title: the subject.
        names: at least one.
        groups: for each name of the legend, a range for each of `names`; at most four groups.
        zero: whether to draw a line at 0, which the axis then includes.

    Returns:
        An `<svg>` element.
    """
    with _drawn(title, 4.6, 0.95 + 0.42 * len(names) + 0.22 * len(groups)) as (axes, svg):
        step = 0.8 / max(2, len(groups) + 1)
        for number, (group, ranges) in enumerate(groups.items()):
            places = [place + step * (number - (len(groups) - 1) / 2) for place in range(len(names))]
            values = np.array([each.value for each in ranges])
            ends = [
                [each.value - (each.value if each.low is None else each.low) for each in ranges],
                [(each.value if each.high is None else each.high) - each.value for each in ranges],
            ]
            axes.errorbar(
                values, places, xerr=ends, fmt="o", color=_COLORS[number], markersize=4.5, linewidth=1.8, label=group
            )
        if zero:
            axes.axvline(0, color=_INK, alpha=0.5, linewidth=1, linestyle=":")
        axes.set_yticks(range(len(names)), names, color=_INK)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(color=_INK, alpha=0.12, axis="x")
        if len(groups) > 1:
            # Below the axes: an interval could run through a legend inside of them.
            axes.figure.legend(frameon=False, labelcolor=_INK, loc="outside lower left", fontsize=9)
    return svg[0]


def heatmap(title: str, counts: np.ndarray, labels: Sequence[str]) -> Markup:
    """Draws a confusion matrix of many classes: correct answers and mistakes in two colours, stronger for more rows.

    Args:
        title: the subject.
        counts: (classes, classes): rows by true and predicted class.
        labels: names of the classes, some of which are written at the axes.

    Returns:
        An `<svg>` element.
    """
    from matplotlib.colors import to_rgb

    with _drawn(title, 7.6, 6.9) as (axes, svg):
        right = np.eye(len(counts), dtype=bool)
        pixels = np.zeros((*counts.shape, 4))
        pixels[..., :3] = np.where(right[..., None], to_rgb(_COLORS[0]), to_rgb(_WRONG))
        # Each kind has its own scale; a single mistake must be visible beside hundreds of correct answers.
        for chosen in (right, ~right):
            largest = max(1, counts[chosen].max(initial=0))
            shown = chosen & (counts > 0)
            pixels[shown, 3] = 0.25 + 0.75 * np.sqrt(counts[shown] / largest)
        axes.imshow(pixels, interpolation="nearest", aspect="equal")
        places = range(0, len(labels), -(-len(labels) // _TICKS))
        named = [f"{labels[p][:_LONGEST_LABEL]}…" if len(labels[p]) > _LONGEST_LABEL else labels[p] for p in places]
        axes.set_xticks(list(places), named, rotation=90, fontsize=9)
        axes.set_yticks(list(places), named, fontsize=9)
        axes.set_xlabel("predicted class", color=_INK)
        axes.set_ylabel("true class", color=_INK)
    return svg[0]


def _set_logarithmic(axes: Any, values: Sequence[float]) -> None:
    """Powers of ten on the y axis, labelled with plain numbers; a linear scale if no power of ten would show."""
    from matplotlib.ticker import LogLocator, NullFormatter

    known = [value for value in values if math.isfinite(value)]
    decades = math.log10(max(known) / min(known)) if known else 0
    if decades < 1:
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _plain_ticks(axes.yaxis)


def _plain_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    class Plain(FuncFormatter):
        def format_ticks(self, values: Sequence[float]) -> list[str]:
            return tick_labels(values) if axis.get_scale() == "linear" else list(map(tick_label, values))

    axis.set_major_formatter(Plain(lambda value, place: tick_label(value)))


def tick_labels(values: Sequence[float]) -> list[str]:
    """Labels for the numbers at an axis, each with as many decimals as the one that needs most; 0 is plain."""
    plain = list(map(tick_label, values))
    if any("e" in label for label in plain):
        return plain
    decimals = max((len(label.partition(".")[2]) for label in plain), default=0)
    return [
        f"{value:,.{decimals}f}".replace("-", "−") if value else label
        for value, label in zip(values, plain, strict=True)
    ]


def tick_label(value: float) -> str:
    """A number at an axis, as in the tables: with separators, and a power of ten only if it is very large or small."""
    if value and not 1e-4 <= abs(value) < 1e7:
        return re.sub(r"e([+-])0*", lambda found: "e" + found[1].replace("+", ""), f"{value:.4g}").replace("-", "−")
    return f"{value:,.10g}".replace("-", "−")


@contextmanager
def _drawn(title: str, width: float, height: float) -> Iterator[tuple[Any, list[Markup]]]:
    """Axes to draw on, and a list that gets the `<svg>` element at the end."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    made: list[Markup] = []
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 11}):
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        axes = figure.add_subplot(facecolor="none")
        yield axes, made
        # Also above the labels of the y axis, so that a long title fits.
        figure.suptitle(title, color=_INK, fontsize=12, x=0.01, horizontalalignment="left")
        axes.tick_params(colors=_INK, which="both")
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(_INK)
            spine.set_alpha(0.4)
        file = io.StringIO()
        FigureCanvasSVG(figure).print_svg(file, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = file.getvalue()
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg))
    made.append(Markup(svg[svg.index("<svg") :].replace(_INK, "currentColor")))  # noqa: S704 (matplotlib escapes text)

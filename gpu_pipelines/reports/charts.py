"""Line charts as inline SVG that takes the page's colours, so that it is readable on light and dark ground."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

# Stands for the page's text colour while matplotlib draws; no other colour here may be equal to it.
_INK = "#010203"
_COLORS = ("#3b82f6", "#f59e0b", "#10b981", "#ec4899")


@dataclass(frozen=True)
class Line:
    """One line: its name in the legend and its points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False


def line_chart(
    title: str, x_label: str, lines: Sequence[Line], *, logarithmic: bool = False, mark: float | None = None
) -> Markup:
    """Draws lines.

    Args:
        title: what is shown, with its unit.
        x_label: what the x axis counts.
        lines: at most four.
        logarithmic: y axis in powers of ten; all values must be above 0.
        mark: x of a dotted vertical line.

    Returns:
        An `<svg>` element.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 11}):
        figure = Figure(figsize=(4.6, 2.9), layout="constrained", facecolor="none")
        axes = figure.add_subplot(facecolor="none")
        for line, color in zip(lines, _COLORS, strict=False):
            marker = "o" if line.dots else None
            axes.plot(line.x, line.y, color=color, linewidth=1.8, label=line.name, marker=marker, markersize=4)
        if mark is not None:
            axes.axvline(mark, color=_INK, alpha=0.5, linewidth=1, linestyle=":")
        if logarithmic:
            axes.set_yscale("log")
        axes.set_title(title, color=_INK, fontsize=12, loc="left")
        axes.set_xlabel(x_label, color=_INK)
        axes.tick_params(colors=_INK, which="both")
        axes.grid(color=_INK, alpha=0.12)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(_INK)
            spine.set_alpha(0.4)
        if len(lines) > 1:
            axes.legend(frameon=False, labelcolor=_INK)
        file = io.StringIO()
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})
    svg = file.getvalue()
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg))
    return Markup(svg[svg.index("<svg") :].replace(_INK, "currentColor"))  # noqa: S704 (matplotlib escapes text)

"""Results in the form for a notebook (`_repr_html_`): tables, and figures drawn with plain HTML and SVG.

The colours are the notebook's, readable on light and dark backgrounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

#: The most rows of a table; it says how many more there are.
MOST_ROWS = 50
_WIDTH, _HEIGHT, _MARGIN = 360, 90, 8
_ACCENT = "#3b82f6"


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> str:
    """A table with numbers aligned to the right.

    Args:
        headings: the headings of the columns; none for a table of names and values.
        rows: the cells; a `Markup` is taken as it is, everything else as text.
        caption: the text above it.
    """
    head = f"<thead><tr>{''.join(f'<th>{escape(each)}</th>' for each in headings)}</tr></thead>" if headings else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MOST_ROWS])
    more = len(rows) - MOST_ROWS
    if more > 0:
        body += f'<tr><td colspan="{len(rows[0])}">and {more:,} more</td></tr>'
    above = f'<caption style="text-align:left;font-weight:bold">{escape(caption)}</caption>' if caption else ""
    return f'<table style="margin:.6em 0;border-spacing:.6em .1em">{above}{head}<tbody>{body}</tbody></table>'


class Markup(str):
    """A piece of HTML, in place of text."""

    __slots__ = ()


def text(value: str, mark: str = "p") -> str:
    """A paragraph, or another element, with a text."""
    return f"<{mark}>{escape(value)}</{mark}>"


def link(place: str, said: str) -> Markup:
    """A link to a page on this machine."""
    return Markup(f'<a href="{escape(place)}" target="_blank">{escape(said)}</a>')


def bar(share: float) -> Markup:
    """A bar in a cell.

    Args:
        share: its length, 0 to 1.
    """
    width = 100 * max(0.0, min(1.0, share))
    return Markup(
        f'<div style="width:8em"><div style="width:{width:.1f}%;height:.7em;background:{_ACCENT}"></div></div>'
    )


def curve(title: str, values: Sequence[float | None], mark: int | None = None) -> str:
    """A line through values, from left to right, with the ends of its scale.

    Args:
        title: the subject.
        values: the values; None is left out.
        mark: index of the highlighted value.
    """
    known = [(number, value) for number, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return ""
    low, high = min(value for _, value in known), max(value for _, value in known)

    def place(number: int, value: float) -> tuple[float, float]:
        across = number / max(len(values) - 1, 1)
        up = (value - low) / (high - low) if high > low else 0.5
        return _MARGIN + across * (_WIDTH - 2 * _MARGIN), _HEIGHT - _MARGIN - up * (_HEIGHT - 2 * _MARGIN)

    places = [(number, *place(number, value)) for number, value in known]
    points = " ".join(f"{x:.1f},{y:.1f}" for _, x, y in places)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if number == mark else 2.5}" fill="{_ACCENT}"/>'
        for number, x, y in places
    )
    said = f"{title}: {low:.4g} to {high:.4g}"
    return (
        f'<figure style="margin:.5em 0"><figcaption>{escape(said)}</figcaption>'
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
        f"<title>{escape(said)}</title>"
        f'<polyline points="{points}" fill="none" stroke="{_ACCENT}" stroke-width="1.8"/>{dots}</svg></figure>'
    )


def _cell(value: Any) -> str:
    if isinstance(value, Markup):
        return f"<td>{value}</td>"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    align = "right" if is_number or _is_figure(value) else "left"
    return f'<td style="text-align:{align}">{escape(str(value))}</td>'


def _is_figure(value: Any) -> bool:
    """Whether a text is a number in the form of tables."""
    try:
        float(str(value).replace(",", "").replace("−", "-"))
    except ValueError:
        return value == "–"
    return True

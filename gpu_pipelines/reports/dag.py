"""Draws a pipeline: its steps as boxes in the order in which they can run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN, _BEND = 196, 58, 46, 26, 6, 34
_SMALLEST = 0.6
_COLORS = {
    "succeeded": "var(--good)",
    "reused": "var(--accent)",
    "failed": "var(--bad)",
    "interrupted": "var(--warn)",
    "died": "var(--bad)",
    "running": "var(--accent)",
}


def draw_dag(
    dependencies: Mapping[str, Sequence[str]], statuses: Mapping[str, str], notes: Mapping[str, str]
) -> Markup:
    """Draws a DAG twice: from left to right for a wide page, and from top to bottom for a narrow one.

    Args:
        dependencies: for each step those that it needs; each step comes after those.
        statuses: the status of each step; a missing step did not run.
        notes: a line below each step's name, such as its duration.

    Returns:
        Two `<svg>` elements, of the classes `across` and `down`, in a box that scrolls.
    """
    level: dict[str, int] = {}
    row: dict[str, int] = {}
    steps_on = Counter[int]()
    for step, needs in dependencies.items():
        level[step] = 1 + max((level[need] for need in needs), default=-1)
        row[step] = steps_on[level[step]]
        steps_on[level[step]] += 1
    arrows = [(need, step, level[step] - level[need]) for step, needs in dependencies.items() for need in needs]
    boxes = [(step, _COLORS.get(statuses.get(step, ""), "var(--line)"), notes.get(step, "")) for step in dependencies]
    pictures = []
    for name, grid in (("across", _across(level, row)), ("down", _down(level, row))):
        # An arrow that skips a level bends around the boxes.
        skips = any(levels > 1 for *_, levels in arrows)
        bend = _across_bend if name == "across" else _down_bend
        width = (
            max((x for x, _ in grid.values()), default=0)
            + _WIDTH
            + _MARGIN
            + (_BEND if skips and name == "down" else 0)
        )
        height = (
            max((y for _, y in grid.values()), default=0)
            + _HEIGHT
            + _MARGIN
            + (_BEND if skips and name == "across" else 0)
        )
        parts = [_head(name, width, height)]
        for need, step, levels in arrows:
            straight = _across_arrow if name == "across" else _down_arrow
            path = straight(grid[need], grid[step]) if levels == 1 else bend(grid[need], grid[step], width, height)
            parts.append(_arrow(path, name))
        parts += [_box(grid[step], step, color, note) for step, color, note in boxes]
        pictures.append("".join([*parts, "</svg>"]))
    return Markup(f'<div class="scroll">{"".join(pictures)}</div>')  # noqa: S704 (names and notes are escaped in _box)


_Place = tuple[int, int]


def _across(level: Mapping[str, int], row: Mapping[str, int]) -> dict[str, _Place]:
    return {
        step: (_MARGIN + level[step] * (_WIDTH + _GAP_X), _MARGIN + row[step] * (_HEIGHT + _GAP_Y)) for step in level
    }


def _down(level: Mapping[str, int], row: Mapping[str, int]) -> dict[str, _Place]:
    return {
        step: (_MARGIN + row[step] * (_WIDTH + _GAP_Y), _MARGIN + level[step] * (_HEIGHT + _GAP_Y)) for step in level
    }


def _head(name: str, width: int, height: int) -> str:
    # A picture of few steps is not enlarged; one of many scrolls rather than become unreadable.
    limit = f"max-width: {width}px; " * (name == "across") + f"min-width: {round(width * _SMALLEST)}px"
    return (
        f'<svg class="dag {name}" style="{limit}" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="the steps of the pipeline">'
        f'<defs><marker id="tip-{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="var(--soft)"/></marker></defs>'
    )


def _arrow(path: str, name: str) -> str:
    return f'<path d="{path}" fill="none" stroke="var(--soft)" stroke-width="1.5" marker-end="url(#tip-{name})"/>'


def _across_arrow(start: _Place, end: _Place) -> str:
    x1, y1, x2, y2 = start[0] + _WIDTH, start[1] + _HEIGHT // 2, end[0] - 2, end[1] + _HEIGHT // 2
    return f"M{x1} {y1}C{x1 + 25} {y1} {x2 - 25} {y2} {x2} {y2}"


def _down_arrow(start: _Place, end: _Place) -> str:
    x1, y1, x2, y2 = start[0] + _WIDTH // 2, start[1] + _HEIGHT, end[0] + _WIDTH // 2, end[1] - 2
    return f"M{x1} {y1}C{x1} {y1 + 14} {x2} {y2 - 14} {x2} {y2}"


def _across_bend(start: _Place, end: _Place, width: int, height: int) -> str:
    x1, x2, low = start[0] + _WIDTH - 30, end[0] + 30, height - 8
    top1, top2 = start[1] + _HEIGHT, end[1] + _HEIGHT + 2
    return f"M{x1} {top1}C{x1} {low} {x1 + 20} {low} {x1 + 50} {low}H{x2 - 50}C{x2 - 20} {low} {x2} {low} {x2} {top2}"


def _down_bend(start: _Place, end: _Place, width: int, height: int) -> str:
    y1, y2, right = start[1] + _HEIGHT - 14, end[1] + 14, width - 8
    x1, x2 = start[0] + _WIDTH, end[0] + _WIDTH + 2
    away, back = f"C{right} {y1} {right} {y1 + 10} {right} {y1 + 24}", f"C{right} {y2 - 10} {right} {y2} {x2} {y2}"
    return f"M{x1} {y1}{away}V{y2 - 24}{back}"


def _box(place: tuple[int, int], name: str, color: str, note: str) -> str:
    x, y = place
    return (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="9" fill="var(--card)" stroke="{color}" '
        f'stroke-width="2"/><text x="{x + 14}" y="{y + 25}" fill="currentColor" font-size="14" font-weight="600">'
        f'{escape(name)}</text><text x="{x + 14}" y="{y + 44}" fill="var(--soft)" font-size="12.5">'
        f"{escape(note)}</text>"
    )

"""A picture of a pipeline: its steps as boxes, left to right in the order in which they can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 196, 58, 46, 26, 6
_COLORS = {
    "succeeded": "var(--good)",
    "reused": "var(--accent)",
    "failed": "var(--bad)",
    "interrupted": "var(--warn)",
}


def draw_dag(
    dependencies: Mapping[str, Sequence[str]], statuses: Mapping[str, str], notes: Mapping[str, str]
) -> Markup:
    """Draws a DAG.

    Args:
        dependencies: for each step those it needs; each step after those.
        statuses: how each step ended; a step that is not in it did not run.
        notes: a line below each step's name, such as its duration.

    Returns:
        An `<svg>` element.
    """
    level: dict[str, int] = {}
    for step, needs in dependencies.items():
        level[step] = 1 + max((level[need] for need in needs), default=-1)
    row = {step: [s for s in level if level[s] == level[step]].index(step) for step in level}
    rows = 1 + max(row.values(), default=0)
    # An arrow over a level that it does not stop at bends below the boxes.
    skips = any(level[step] - level[need] > 1 for step, needs in dependencies.items() for need in needs)
    width = 2 * _MARGIN + (max(level.values(), default=0) + 1) * (_WIDTH + _GAP_X) - _GAP_X
    height = 2 * _MARGIN + rows * (_HEIGHT + _GAP_Y) - (0 if skips else _GAP_Y) + (18 if skips else 0)

    def place(step: str) -> tuple[int, int]:
        return _MARGIN + level[step] * (_WIDTH + _GAP_X), _MARGIN + row[step] * (_HEIGHT + _GAP_Y)

    parts = [
        f'<svg class="dag" viewBox="0 0 {width} {height}" role="img" aria-label="the steps of the pipeline">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="var(--soft)"/></marker></defs>',
    ]
    for step, needs in dependencies.items():
        parts += [_arrow(place(need), place(step), level[step] - level[need], height) for need in needs]
    for step in dependencies:
        parts.append(_box(place(step), step, _COLORS.get(statuses.get(step, ""), "var(--line)"), notes.get(step, "")))
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 (names and notes are escaped in _box)


def _arrow(start: tuple[int, int], end: tuple[int, int], levels: int, height: int) -> str:
    if levels == 1:
        x1, y1, x2, y2 = start[0] + _WIDTH, start[1] + _HEIGHT // 2, end[0] - 2, end[1] + _HEIGHT // 2
        path = f"M{x1} {y1}C{x1 + 25} {y1} {x2 - 25} {y2} {x2} {y2}"
    else:
        x1, x2, low = start[0] + _WIDTH - 30, end[0] + 30, height - 8
        top1, top2 = start[1] + _HEIGHT, end[1] + _HEIGHT + 2
        path = (
            f"M{x1} {top1}C{x1} {low} {x1 + 20} {low} {x1 + 50} {low}H{x2 - 50}C{x2 - 20} {low} {x2} {low} {x2} {top2}"
        )
    return f'<path d="{path}" fill="none" stroke="var(--soft)" stroke-width="1.5" marker-end="url(#tip)"/>'


def _box(place: tuple[int, int], name: str, color: str, note: str) -> str:
    x, y = place
    return (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="9" fill="var(--card)" stroke="{color}" '
        f'stroke-width="2"/><text x="{x + 14}" y="{y + 25}" fill="currentColor" font-size="14" font-weight="600">'
        f'{escape(name)}</text><text x="{x + 14}" y="{y + 44}" fill="var(--soft)" font-size="12.5">'
        f"{escape(note)}</text>"
    )

"""The report of a check for drift."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gpu_pipelines.drift.check import DriftCheck
from gpu_pipelines.drift.comparison import INPUTS, PREDICTIONS, ROWS, Finding
from gpu_pipelines.drift.two_samples import NONE
from gpu_pipelines.reports.page import render, write_page

_GROUPS = {INPUTS: "What the model gets", PREDICTIONS: "What it says", ROWS: "Rows that lack something"}
#: Most figures to draw of findings with and without drift, by the largest effects. The tables have all.
_DRIFTED_DRAWN, _OTHERS_DRAWN = 100, 12
_WIDTH, _HEIGHT = 300, 90
_TEXT = "fill: var(--soft); font-size: 11px"


def write_report(found: DriftCheck, path: Path) -> None:
    """Writes the report.

    Args:
        found: the check.
        path: the HTML file.
    """
    said = found.model
    others = [each for each in found.findings if not each.drifted]
    drawn = [*found.drifted[:_DRIFTED_DRAWN], *others[:_OTHERS_DRAWN]]
    sections = render(
        Path(__file__).with_name("report.html"),
        c=found,
        model=f"{said['name']} version {said['version']}" if "version" in said else said["place"],
        groups=[(title, rows) for group, title in _GROUPS.items() if (rows := _of(found, group))],
        numbers=[(each, figure_of(each)) for each in drawn if _is_histogram(each)],
        categories=[(each, list(_bars(each))) for each in drawn if each.shares and not _is_histogram(each)],
        p=_p_value,
    )
    write_page(path, f"Drift: {found.source}", sections)


def _of(found: DriftCheck, group: str) -> list[Finding]:
    """The findings of a group; for missing values, only those that occur."""
    return [each for each in found.findings if each.group == group and not (group == ROWS and each.test == NONE.test)]


def _p_value(value: float) -> str:
    if value >= 0.0001:
        return f"{value:.2g}"
    exponent = f"{value:.0e}".partition("e-")[2].lstrip("0") if value else ""
    return f"under 10⁻{_raised(str(int(exponent) - 1))}" if exponent and int(exponent) <= 12 else "under 10⁻¹²"


def _raised(digits: str) -> str:
    return digits.translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _is_histogram(finding: Finding) -> bool:
    """Whether its bars are bins, named by their edges."""
    return bool(finding.shares) and len(finding.shares["names"]) == len(finding.shares["now"]) + 1


def figure_of(finding: Finding) -> Markup:
    """Both distributions of numbers in one figure: then as an area, now as a line."""
    before, now = finding.shares["before"], finding.shares["now"]
    most = max(*before, *now) or 1.0
    low, high = finding.shares["names"][0], finding.shares["names"][-1]

    def steps(shares: list[float]) -> str:
        width = _WIDTH / len(shares)
        heights = [_HEIGHT - share / most * (_HEIGHT - 4) for share in shares]
        return " ".join(f"{n * width:.1f},{y:.1f} {(n + 1) * width:.1f},{y:.1f}" for n, y in enumerate(heights))

    # It holds only numbers, which need no escape.
    return Markup(  # noqa: S704
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 16}" role="img" aria-label="distributions then and now">'
        f'<polygon points="0,{_HEIGHT} {steps(before)} {_WIDTH},{_HEIGHT}" style="fill: var(--soft); opacity: 0.35"/>'
        f'<polyline points="{steps(now)}" style="fill: none; stroke: var(--accent); stroke-width: 2"/>'
        f'<text x="0" y="{_HEIGHT + 13}" style="{_TEXT}">{low:.3g}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 13}" text-anchor="end" style="{_TEXT}">{high:.3g}</text></svg>'
    )


def _bars(finding: Finding) -> Iterator[dict[str, Any]]:
    """The shares of each category then and now, and the lengths of its bars, percent."""
    shares = finding.shares
    most = max(*shares["before"], *shares["now"]) or 1.0
    for name, before, now in zip(shares["names"], shares["before"], shares["now"], strict=True):
        yield {
            "name": name,
            "before": f"{before:.1%}",
            "now": f"{now:.1%}",
            "before_width": round(100 * before / most, 1),
            "now_width": round(100 * now / most, 1),
        }

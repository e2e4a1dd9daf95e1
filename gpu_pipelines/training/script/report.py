"""The HTML report of `run_training_script`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

from gpu_pipelines.reports.charts import Line, line_chart
from gpu_pipelines.reports.page import render, write_page
from gpu_pipelines.training.script.run import ScriptSummary

MOST_CHARTS = 12


def write_report(summary: ScriptSummary, path: Path) -> None:
    """Writes the report: the script's metrics over its steps, as far as it wrote any.

    Args:
        summary: how it ran.
        path: the HTML file.
    """
    series = summary.series()
    charts = [line_chart(name, "step", [_line(name, series[name])]) for name in list(series)[:MOST_CHARTS]]
    shown = {
        "arguments": shlex.join(map(str, summary.settings.arguments)),
        "environment": ", ".join(summary.settings.environment),  # the values may be secrets
    }
    sections = render(
        Path(__file__).with_name("report.html"),
        summary=summary,
        figures=summary.figures(),
        charts=charts,
        left_out=list(series)[MOST_CHARTS:],
        parameters=asdict(summary.settings) | shown,
    )
    write_page(path, f"Training: {summary.settings.script}", sections)


def _line(name: str, points: list[tuple[float, float]]) -> Line:
    # A single point would not be seen as a line.
    return Line(name, [step for step, _ in points], [value for _, value in points], dots=len(points) == 1)

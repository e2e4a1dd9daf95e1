"""What `run_training_script` does with its KFP inputs and outputs."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.step import log_metrics, of_this_training, own_process, place_of, with_advanced
from gpu_pipelines.reports.charts import Line, line_chart
from gpu_pipelines.reports.durations import format_seconds
from gpu_pipelines.reports.page import render, write_page
from gpu_pipelines.tracking.facts import Facts, facts_of_training
from gpu_pipelines.tracking.tracked import Tracked, run_at
from gpu_pipelines.training.script.run import ScriptSummary, run_script
from gpu_pipelines.training.script.settings import ScriptSettings

MOST_CHARTS = 12


def run(
    settings: ScriptSettings,
    *,
    dataset: Any,
    checkpoints: Any,
    training_metrics: Any,
    training_report: Any,
    checkpoint_uri: str = "",
    tracking: str = "none",
) -> None:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        dataset: a KFP artifact, as are the next three.
        checkpoints: gets the script's output.
        training_metrics: gets the figures.
        training_report: gets the report.
        checkpoint_uri: where the checkpoints go; empty for the artifact's own place.
        tracking: the tracker.
    """
    with own_process():
        settings = with_advanced(settings, {})
        place = place_of(checkpoints, of_this_training(checkpoint_uri, settings, dataset))
        tracked = Tracked(tracking, run_at(place))
        tracked.require_tracker()
        with tracked:
            summary = run_script(settings, Path(dataset.path), place, tracked.follow)
            if summary is not None:
                checkpoints.metadata.update(
                    script=settings.script, checkpoints=len(summary.checkpoints), rehearsal=summary.devices.rehearsal
                )
                log_metrics(training_metrics, summary.figures())
                write_report(summary, Path(training_report.path))
                tracked.add(_facts(summary), training_report=training_report.path)
        if summary is None:
            # Only rank 0 writes outputs; KFP's executor would write its own after this function returned.
            sys.exit(0)


def _facts(summary: ScriptSummary) -> Facts:
    """What a tracker shows of a script, without its environment, whose values may be secrets."""
    settings = summary.settings
    told = {"script": settings.script, "arguments": shlex.join(settings.words), "launcher": settings.launcher}
    devices = {"name": summary.devices.kind, "world_size": summary.nodes * summary.devices.processes}
    return facts_of_training({"settings": told, "devices": devices})


def write_report(summary: ScriptSummary, path: Path) -> None:
    """Writes the report: the script's metrics over its steps, if it wrote any.

    Args:
        summary: of the script's run.
        path: the HTML file.
    """
    series = summary.series()
    charts = [line_chart(name, "step", [_line(name, series[name])]) for name in list(series)[:MOST_CHARTS]]
    shown = {
        "arguments": shlex.join(summary.settings.words),
        "environment": ", ".join(summary.settings.environment),  # the values may be secrets
    }
    sections = render(
        Path(__file__).with_name("report.html"),
        summary=summary,
        figures=summary.figures(),
        duration=format_seconds(summary.seconds),
        charts=charts,
        left_out=list(series)[MOST_CHARTS:],
        parameters=asdict(summary.settings) | shown,
    )
    write_page(path, f"Training: {summary.settings.script}", sections)


def _line(name: str, points: list[tuple[float, float]]) -> Line:
    # A single point would not be seen as a line.
    return Line(name, [step for step, _ in points], [value for _, value in points], dots=len(points) == 1)

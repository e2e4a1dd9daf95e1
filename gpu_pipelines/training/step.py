"""What `train_model` does with its KFP inputs and outputs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.step import log_metrics, of_this_training, own_process, place_of, with_advanced
from gpu_pipelines.notifications import notes
from gpu_pipelines.numbers import throughput_told
from gpu_pipelines.reports.charts import Line, line_chart
from gpu_pipelines.reports.page import render, write_page
from gpu_pipelines.step_environment import TRIES
from gpu_pipelines.tracking.facts import Facts
from gpu_pipelines.tracking.tracked import Tracked, run_at
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import TrainingSummary, train_model

_NOT_IN_CURVES = ("seconds", "processes", "checkpoints", "lowest_val_loss")


def run(
    settings: TrainingSettings,
    *,
    dataset: Any,
    checkpoints: Any,
    training_metrics: Any,
    training_report: Any,
    checkpoint_uri: str = "",
    tracking: str = "none",
    outcome_uri: str = "",
    advanced: Mapping[str, Any],
) -> None:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        dataset: a KFP artifact, as are the next three.
        checkpoints: gets the checkpoints.
        training_metrics: gets the figures.
        training_report: gets the report.
        checkpoint_uri: where the checkpoints go; empty for the artifact's own place.
        tracking: the tracker.
        outcome_uri: where to leave how long it took, for the message at the end of the run; empty for none.
        advanced: values of parameters by name, which win; one is where the checkpoints go.
    """
    with own_process():
        settings = with_advanced(settings, advanced, "checkpoint_uri")
        uri = of_this_training(advanced.get("checkpoint_uri", checkpoint_uri), settings, dataset)
        place = place_of(checkpoints, uri)
        tracked = Tracked(tracking, run_at(place, settings.resume_from_step))
        tracked.require_tracker()
        with tracked:
            summary = train_model(settings, place_of(dataset), place, tracked=tracked)
            if summary is not None:
                checkpoints.metadata.update(
                    task=summary.task, checkpoints=len(summary.checkpoints), rehearsal=summary.devices.rehearsal
                )
                log_metrics(training_metrics, summary.figures())
                notes.leave(outcome_uri, notes.TRAINED, {"seconds": summary.figures()["seconds"]})
                write_report(summary, Path(training_report.path))
                tracked.add(Facts(figures=_seconds_and_size(summary)), training_report=training_report.path)
        if summary is None:
            # Only rank 0 writes outputs; KFP's executor would write its own after this function returned.
            sys.exit(0)


def _seconds_and_size(summary: TrainingSummary) -> dict[str, float]:
    """The figures that the curves of a training do not show."""
    return {f"training_{name}": value for name, value in summary.figures().items() if name in _NOT_IN_CURVES}


def write_report(summary: TrainingSummary, path: Path) -> None:
    """Writes the report of a training.

    Args:
        summary: how it went.
        path: the HTML file.
    """

    def of(name: str) -> list[float]:
        return [entry[name] for entry in summary.metrics]

    losses = [Line("train", of("step"), of("loss"))]
    watched = [entry for entry in summary.validation if entry["val_loss"] is not None]
    if watched:
        losses.append(
            Line("val", [entry["step"] for entry in watched], [entry["val_loss"] for entry in watched], dots=True)
        )
    positive = all(value > 0 for line in losses for value in line.y)
    sections = render(
        Path(__file__).with_name("report.html"),
        figures=summary.figures(),
        throughput_told=throughput_told,
        settings=summary.settings,
        devices=summary.devices,
        nodes=summary.nodes,
        rows=summary.rows,
        profiles=summary.profiles,
        tries=json.loads(os.environ.get(TRIES) or "[]"),
        parameters=asdict(summary.settings),
        loss_chart=line_chart("Loss (nats)", "step", losses, logarithmic=positive),
        rate_chart=line_chart("Learning rate", "step", [Line("learning rate", of("step"), of("learning_rate"))]),
        speed_chart=line_chart(
            "Throughput (samples/s)", "step", [Line("samples/s", of("step"), of("samples_per_second"))]
        ),
    )
    write_page(path, f"Training: {summary.settings.model}", sections)

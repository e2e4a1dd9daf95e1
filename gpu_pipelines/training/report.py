"""The HTML report of `train_model`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from gpu_pipelines.reports.charts import Line, line_chart
from gpu_pipelines.reports.page import render, write_page
from gpu_pipelines.training.train import TrainingSummary


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
        settings=summary.settings,
        devices=summary.devices,
        nodes=summary.nodes,
        rows=summary.rows,
        parameters=asdict(summary.settings),
        loss_chart=line_chart("Loss (nats)", "step", losses, logarithmic=positive),
        rate_chart=line_chart("Learning rate", "step", [Line("learning rate", of("step"), of("learning_rate"))]),
        speed_chart=line_chart(
            "Throughput (samples/s)", "step", [Line("samples/s", of("step"), of("samples_per_second"))]
        ),
    )
    write_page(path, f"Training: {summary.settings.model}", sections)

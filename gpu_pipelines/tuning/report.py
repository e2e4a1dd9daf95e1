"""The report of a study: its trials, the importance of its parameters, its curves, and its cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_pipelines.numbers import figure
from gpu_pipelines.reports.charts import Axis, Line, many_lines_chart, parallel_chart, tick_label
from gpu_pipelines.reports.durations import format_seconds
from gpu_pipelines.reports.page import render, write_page
from gpu_pipelines.tuning.result import Trial, TuningResult
from gpu_pipelines.tuning.sampler import importance
from gpu_pipelines.tuning.space import Dimension
from gpu_pipelines.tuning.study import StudyRequest

_FEWEST_FOR_PARALLEL = 2


def write_report(result: TuningResult, request: StudyRequest, path: Path) -> None:
    """Writes the report of a study.

    Args:
        result: the result.
        request: the request.
        path: the HTML file.
    """
    ranked = sorted(result.trials, key=_rank)
    lines = [
        Line(str(trial.number), [step for step, _ in trial.curve], [loss for _, loss in trial.curve])
        for trial in result.trials
        if trial.curve
    ]
    positive = all(loss > 0 for line in lines for loss in line.y)
    shares = importance(request.space, [trial.known for trial in result.trials])
    known = [trial for trial in ranked if trial.loss is not None]
    sections = render(
        Path(__file__).with_name("report.html"),
        result=result,
        request=request,
        names=request.space.names,
        rows=[_row(trial, request.space.names) for trial in ranked],
        whole=sum(trial.is_whole for trial in result.trials),
        full_rows=_rows_of_whole_trainings(result, request),
        loss=figure(result.loss),
        duration=format_seconds(result.seconds),
        importance=sorted(shares.items(), key=lambda each: -each[1]),
        curves=many_lines_chart("Loss on val (nats)", "step", lines, best=str(result.best), logarithmic=positive),
        coordinates=_coordinates(request.space.dimensions, known, result.best)
        if len(known) >= _FEWEST_FOR_PARALLEL
        else None,
    )
    write_page(path, "Tuning", sections, subtitle=f"{len(result.trials)} trials for {request.task}")


def _rank(trial: Trial) -> tuple[int, float, int]:
    return -trial.rung, math.inf if trial.loss is None else trial.loss, trial.number


def _row(trial: Trial, names: Sequence[str]) -> dict[str, Any]:
    state = "failed" if trial.error else "trained to its end" if trial.is_whole else "ended early"
    return {
        "number": trial.number,
        "values": [_shown(trial.parameters[name]) if name in trial.parameters else "–" for name in names],
        "loss": figure(trial.loss),
        "step": trial.step,
        "state": state,
        "error": trial.error,
    }


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rows_of_whole_trainings(result: TuningResult, request: StudyRequest) -> int:
    """Rows that the same trials would have taken if each were trained to its end."""
    total = 0
    for trial in result.trials:
        settings, steps = request.trained_with(dict(trial.parameters))
        total += steps[-1] * settings.global_batch_size
    return total


def _coordinates(dimensions: Sequence[Dimension], trials: Sequence[Trial], best: int) -> Any:
    axes = [_axis(dimension, trials) for dimension in dimensions]
    losses = [trial.loss for trial in trials if trial.loss is not None]
    low, high = min(losses), max(losses)
    width = (high - low) or 1.0
    ends = tick_label(round(low, 4)), tick_label(round(high, 4))
    axes.append(Axis("loss on val", ends, [(loss - low) / width for loss in losses]))
    ranks = [place / max(1, len(trials) - 1) for place in range(len(trials))]
    number = next(place for place, trial in enumerate(trials) if trial.number == best)
    return parallel_chart("Parameters and losses of the trials", axes, ranks, number)


def _axis(dimension: Dimension, trials: Sequence[Trial]) -> Axis:
    values = [trial.parameters.get(dimension.name) for trial in trials]
    if dimension.kind == "categorical":
        last = max(1, len(dimension.choices) - 1)
        places = [None if value is None else dimension.choices.index(value) / last for value in values]
        return Axis(dimension.name, (str(dimension.choices[0]), str(dimension.choices[-1])), places)

    def place(value: float) -> float:
        low, high = dimension.low, dimension.high
        if dimension.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)

    ends = tick_label(dimension.low), tick_label(dimension.high)
    return Axis(dimension.name, ends, [None if value is None else place(value) for value in values])

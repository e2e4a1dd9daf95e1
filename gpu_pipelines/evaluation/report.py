"""The HTML report of `evaluate_checkpoints`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.evaluation.bootstrap import without_interval
from gpu_pipelines.evaluation.shown_confusion import confused_pairs, is_small, matrix, picture
from gpu_pipelines.evaluation.shown_rows import shown_rows
from gpu_pipelines.numbers import figure
from gpu_pipelines.reports.charts import Line, Range, interval_chart, line_chart, reliability_chart
from gpu_pipelines.reports.page import render, write_page
from gpu_pipelines.tasks.tasks import task_named

#: A table of so many classes has them all; of more, those of lowest recall.
MOST_CLASSES, CLASSES_SHOWN = 40, 20
CHARTS_OF_OWN_METRICS = 4
#: Charts over the checkpoints, with the metrics that they show; those that a task has are drawn.
CHARTS = (
    ("On val, by checkpoint", ("accuracy", "macro_f1")),
    ("Log loss on val (nats)", ("log_loss",)),
    ("Mean loss on val (nats)", ("loss",)),
    ("Token accuracy on val", ("token_accuracy",)),
)


def write_report(evaluation: Evaluation, dataset_directory: Path, path: Path) -> None:
    """Writes the report of an evaluation.

    Args:
        evaluation: what came of it.
        dataset_directory: the dataset; the worst rows are shown from its test split.
        path: the HTML file.
    """
    classifies = bool(evaluation.test.get("confusion"))
    classes = _classes(evaluation) if classifies else []
    metrics = evaluation.test["metrics"]
    sections = render(
        Path(__file__).with_name("report.html"),
        e=evaluation,
        compared=evaluation.champion is not None and "not_compared" not in evaluation.champion,
        figure=figure,
        signed=_signed,
        unknown=without_interval(math.nan),
        reasons=_reasons(evaluation),
        metrics=list(metrics),
        epochs=any(scored["epoch"] is not None for scored in evaluation.checkpoints),
        intervals=any(metric["low"] is not None for metric in metrics.values()),
        charts=_charts(evaluation),
        differences=(evaluation.champion or {}).get("differences", {}),
        better=_better(evaluation),
        beside=_beside_champion(evaluation),
        classifies=classifies,
        classes=classes,
        hidden_classes=len(evaluation.labels) - len(classes),
        confusion=matrix(evaluation) if classifies and is_small(evaluation) else [],
        digits=len(f"{max(map(max, evaluation.test['confusion'])):,}") if classifies else 0,
        confusion_picture=picture(evaluation) if classifies and not is_small(evaluation) else None,
        confused=confused_pairs(evaluation) if classifies and not is_small(evaluation) else [],
        calibration=_calibration(evaluation),
        slices=evaluation.test.get("slices", []),
        worst=shown_rows(evaluation.mistakes, dataset_directory),
        worst_text=task_named(evaluation.task).worst,
        worst_columns=[name for name in next(iter(evaluation.mistakes), {}) if name not in ("row", "source", "text")],
        terms=task_named(evaluation.task).terms,
    )
    write_page(path, f"Evaluation: {evaluation.model_name}", sections)


def _reasons(evaluation: Evaluation) -> list[str]:
    """Why it passed or not: what failed, else what was asked for."""
    failed = [gate["why"] for gate in evaluation.gates if not gate["passed"]]
    return failed or [gate["why"] for gate in evaluation.gates]


def _charts(evaluation: Evaluation) -> list[Markup]:
    # The mean of several checkpoints has no place of its own in time.
    trained = [scored for scored in evaluation.checkpoints if not scored.get("averages")]
    steps = [scored["step"] for scored in trained]
    best = next(scored["step"] for scored in evaluation.checkpoints if scored["name"] == evaluation.best)
    # The names of a user's own checkpoints say what their numbers count.
    counted = evaluation.best.partition("-")[0] if evaluation.scoring_function else "step"
    if len(steps) < 2:
        return []

    def chart(title: str, *names: str) -> Markup:
        # None, which is no figure, leaves a gap.
        values = {name: [_or_nan(scored["val"][name]) for scored in trained] for name in names}
        lines = [Line(name, steps, values[name], dots=True) for name in names]
        return line_chart(title, counted, lines, mark=best)

    metrics = evaluation.test["metrics"]
    known = [] if evaluation.scoring_function else [c for c in CHARTS if all(name in metrics for name in c[1])]
    if known:
        return [chart(title, *names) for title, names in known]
    shown = sorted(metrics, key=lambda name: name != evaluation.select_by)[:CHARTS_OF_OWN_METRICS]
    return [chart(f"{name} on val", name) for name in shown]


def _beside_champion(evaluation: Evaluation) -> list[Markup]:
    """The metrics of both models that are shares, and their differences, as far as intervals are known."""
    if evaluation.champion is None or "differences" not in evaluation.champion:
        return []
    metrics, theirs = task_named(evaluation.task).metrics, evaluation.champion["metrics"]
    ours = evaluation.test["metrics"]
    # Shares have one scale in common; where the metric that decides is none of them, it is shown alone.
    main = evaluation.select_by
    names = [name for name in ours if name in metrics and metrics[name].largest == 1]
    names = names if main in names else [main]
    shares = [name for name in names if _is_known(ours[name]) and _is_known(theirs.get(name))]
    charts = []
    if shares:
        both = {
            "this model": [_range(ours[name]) for name in shares],
            f"champion (version {evaluation.champion['version']})": [_range(theirs[name]) for name in shares],
        }
        charts.append(interval_chart("Both models on test, 95% intervals", shares, both))
    differences = evaluation.champion["differences"]
    known = {name: _range(differences[name]) for name in shares if _is_known(differences[name])}
    if known:
        title = "This model less the champion, 95% intervals"
        charts.append(interval_chart(title, list(known), {"difference": list(known.values())}, zero=True))
    return charts


def _is_known(metric: dict[str, Any] | None) -> bool:
    return metric is not None and metric["value"] is not None and metric["low"] is not None


def _range(metric: dict[str, Any]) -> Range:
    return Range(metric["value"], metric["low"], metric["high"])


def _calibration(evaluation: Evaluation) -> Markup | None:
    bins = evaluation.test.get("calibration")
    return reliability_chart("Calibration on test", bins) if bins else None


def _better(evaluation: Evaluation) -> dict[str, str]:
    """For each metric whether its difference to the champion is good or bad, with an interval on one side of 0."""
    known = {} if evaluation.scoring_function else task_named(evaluation.task).metrics
    found = {}
    for name, difference in (evaluation.champion or {}).get("differences", {}).items():
        low, high = difference["low"], difference["high"]
        if name in known and low is not None and high is not None and (low > 0 or high < 0):
            found[name] = "good" if (low > 0) == known[name].more_is_better else "bad"
    return found


def _signed(value: float | None) -> str:
    """A difference with its sign."""
    return figure(value) if value is None else f"{'+' if value > 0 else '−' if value < 0 else ''}{figure(abs(value))}"


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _classes(evaluation: Evaluation) -> list[dict[str, Any]]:
    rows = [
        {"label": label, **figures}
        for label, figures in zip(evaluation.labels, evaluation.test["per_class"], strict=True)
    ]
    if len(rows) > MOST_CLASSES:
        rows = sorted(rows, key=lambda row: row["recall"])[:CLASSES_SHOWN]
    return rows

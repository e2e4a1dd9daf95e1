"""The HTML report of `evaluate_checkpoints`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from gpu_pipelines.artifacts.benchmark_results import as_float
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.evaluation.benchmarks.report import benchmark_section
from gpu_pipelines.evaluation.champion.report_parts import charts_beside, verdicts
from gpu_pipelines.evaluation.generation.request import metric_of
from gpu_pipelines.evaluation.metrics.one_answer import no_better_than_one_answer
from gpu_pipelines.evaluation.statistics.bootstrap import without_interval
from gpu_pipelines.evaluation.trainings import differing
from gpu_pipelines.numbers import figure, signed
from gpu_pipelines.reports.charts import Line, heatmap, line_chart, reliability_chart
from gpu_pipelines.reports.page import image_data, render, write_page
from gpu_pipelines.tasks.batch_encoding import TYPE_IDS
from gpu_pipelines.tasks.metric import Metric
from gpu_pipelines.tasks.tasks import task_named
from gpu_pipelines.tasks.text_tokenizer import load_tokenizer

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
#: A chart has no more lines.
TRAININGS_IN_CHART = 4
CLASSES_IN_TABLE = 25
TEXT_SHOWN = 240
#: Entries of a worst row that are shown in a column of their own.
_PLACES = ("row", "source", "text")


def write_report(evaluation: Evaluation, dataset_directory: Path, path: Path) -> None:
    """Writes the report of an evaluation.

    Args:
        evaluation: the results.
        dataset_directory: the dataset; the worst rows are shown from its test split.
        path: the HTML file.
    """
    classifies = "confusion" in evaluation.test
    has_table = classifies and len(evaluation.labels) <= CLASSES_IN_TABLE
    classes = _classes(evaluation) if classifies else []
    metrics = evaluation.test["metrics"]
    sections = render(
        Path(__file__).with_name("report.html"),
        e=evaluation,
        compared=evaluation.champion is not None and "not_compared" not in evaluation.champion,
        figure=figure,
        signed=signed,
        unknown=without_interval(math.nan),
        reasons=_reasons(evaluation),
        no_better=no_better_than_one_answer(evaluation),
        metrics=list(metrics),
        on_val=[name for name in metrics if all(name in scored["val"] for scored in evaluation.checkpoints)],
        texts=evaluation.texts,
        epochs=any(scored["epoch"] is not None for scored in evaluation.checkpoints),
        intervals=any(metric["low"] is not None for metric in metrics.values()),
        charts=_charts(evaluation),
        trainings=_trainings(evaluation),
        differences=(evaluation.champion or {}).get("differences", {}),
        better=_better(evaluation),
        beside=_beside_champion(evaluation),
        benchmarks=benchmark_section(evaluation),
        classifies=classifies,
        classes=classes,
        hidden_classes=len(evaluation.labels) - len(classes),
        parts=_parts(evaluation),
        confusion=matrix(evaluation) if has_table else [],
        digits=len(f"{max(map(max, evaluation.test['confusion'])):,}") if has_table else 0,
        confusion_picture=picture(evaluation) if classifies and not has_table else None,
        confused=confused_pairs(evaluation) if classifies and not has_table else [],
        calibration=_calibration(evaluation),
        slices=evaluation.test.get("slices", []),
        worst=shown_rows(evaluation.mistakes, dataset_directory),
        worst_text=task_named(evaluation.task).worst,
        worst_columns=_worst_columns(evaluation),
    )
    write_page(path, f"Evaluation: {evaluation.model_name}", sections)


def _worst_columns(evaluation: Evaluation) -> list[str]:
    """What a task says of its worst rows, besides where each comes from and its text; not every row need have all."""
    return list(dict.fromkeys(name for row in evaluation.mistakes for name in row if name not in _PLACES))


def _reasons(evaluation: Evaluation) -> list[str]:
    """Why it passed or not: what failed, else what was asked for."""
    failed = [gate["why"] for gate in evaluation.gates if not gate["passed"]]
    return failed or [gate["why"] for gate in evaluation.gates]


def _trainings(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The trainings, where there are several: the best checkpoint of each on val, and what each was told alone."""
    told = differing({each["name"]: each["settings"] for each in evaluation.trainings})
    found = []
    for name, settings in told.items():
        values = {each["name"]: each["val"][evaluation.select_by] for each in _of_training(evaluation, name)}
        known = {checkpoint: value for checkpoint, value in values.items() if value is not None}
        sign = 1 if evaluation.more_is_better else -1
        best = max(known, key=lambda checkpoint: sign * known[checkpoint], default="")
        said = ", ".join(f"{setting}={value}" for setting, value in settings.items())
        found.append({"name": name, "best": best, "value": known.get(best), "settings": said, "of": len(values)})
    return found


def _of_training(evaluation: Evaluation, name: str) -> list[dict[str, Any]]:
    return [scored for scored in evaluation.checkpoints if scored.get("training", "") == name]


def _chart_of_trainings(evaluation: Evaluation) -> list[Markup]:
    """The metric that chooses, over the checkpoints of each training; of many trainings those that did best."""
    sign = -1 if evaluation.more_is_better else 1
    best_first = sorted(
        (each for each in _trainings(evaluation) if each["value"] is not None), key=lambda each: sign * each["value"]
    )
    lines = []
    for training in best_first[:TRAININGS_IN_CHART]:
        trained = [scored for scored in evaluation.trained_checkpoints if scored["training"] == training["name"]]
        values = [as_float(scored["val"][evaluation.select_by]) for scored in trained]
        lines.append(Line(training["name"], [scored["step"] for scored in trained], values, dots=True))
    return [line_chart(f"{evaluation.select_by} on val", "step", lines)] if lines else []


def _charts(evaluation: Evaluation) -> list[Markup]:
    if evaluation.trainings:
        return _chart_of_trainings(evaluation)
    trained = evaluation.trained_checkpoints
    averages = [scored for scored in evaluation.checkpoints if scored.get("ema")]
    steps = [scored["step"] for scored in trained]
    best = next(scored["step"] for scored in evaluation.checkpoints if scored["name"] == evaluation.best)
    # The names of a user's own checkpoints say what their numbers count.
    counted = evaluation.best.partition("-")[0] if evaluation.scoring_function else "step"
    if len(steps) < 2:
        return []

    def chart(title: str, *names: str) -> Markup:
        lines = []
        for of, what in ((trained, ""), (averages, " (ema)")):
            # None, which is no figure, leaves a gap.
            values = {name: [as_float(scored["val"][name]) for scored in of] for name in names}
            at = [scored["step"] for scored in of]
            lines += [Line(f"{name}{what}", at, values[name], dots=True) for name in names if of]
        return line_chart(title, counted, lines, mark=best)

    # Text may be written on test alone.
    on_val = {name for checkpoint in evaluation.checkpoints for name in checkpoint["val"]}
    metrics = [name for name in evaluation.test["metrics"] if name in on_val]
    known = [] if evaluation.scoring_function else [c for c in CHARTS if all(name in metrics for name in c[1])]
    if evaluation.texts and evaluation.select_by in evaluation.texts["metrics"]:
        known = [(f"{evaluation.select_by} of written text on val", (evaluation.select_by,)), *known]
    # The first metric of a task says most about it, unless another one chooses.
    if any({next(iter(metrics)), evaluation.select_by} & set(names) for _, names in known):
        return [chart(title, *names) for title, names in known]
    shown = sorted(metrics, key=lambda name: name != evaluation.select_by)[:CHARTS_OF_OWN_METRICS]
    return [chart(f"{name} on val", name) for name in shown]


def _beside_champion(evaluation: Evaluation) -> list[Markup]:
    """The metrics of both models that are shares, and their differences, as far as intervals are known."""
    if evaluation.champion is None or "differences" not in evaluation.champion:
        return []
    metrics, ours = _known_metrics(evaluation), evaluation.test["metrics"]
    # Shares have one scale in common; where the metric that decides is none of them, it is shown alone.
    main = evaluation.select_by
    names = [name for name in ours if name in metrics and metrics[name].largest == 1]
    return charts_beside("test", names if main in names else [main], ours, evaluation.champion)


def _calibration(evaluation: Evaluation) -> Markup | None:
    bins = evaluation.test.get("calibration")
    return reliability_chart("Calibration on test", bins) if bins else None


def _better(evaluation: Evaluation) -> dict[str, str]:
    known = {} if evaluation.scoring_function else _known_metrics(evaluation)
    return verdicts(evaluation.champion, lambda name: known[name].more_is_better if name in known else None)


def _known_metrics(evaluation: Evaluation) -> dict[str, Metric]:
    """The metrics of the task, and those of written text."""
    written = (evaluation.texts or {}).get("metrics", ())
    return {**task_named(evaluation.task).metrics, **{name: metric_of(name) for name in written}}


def _classes(evaluation: Evaluation) -> list[dict[str, Any]]:
    rows = [
        {"label": label, **figures}
        for label, figures in zip(evaluation.labels, evaluation.test["per_class"], strict=True)
    ]
    if len(rows) > MOST_CLASSES:
        rows = sorted((row for row in rows if row["rows"]), key=lambda row: row["recall"])[:CLASSES_SHOWN]
    return rows


def _parts(evaluation: Evaluation) -> list[dict[str, Any]]:
    """What the rows are told by, such as the classes of which each has several; of many those of lowest F1."""
    parts: list[dict[str, Any]] = evaluation.test.get("parts", [])
    if len(parts) > MOST_CLASSES and "f1" in parts[0]:
        present = (part for part in parts if part.get("rows") or part.get("entities"))
        parts = sorted(present, key=lambda part: part["f1"])[:CLASSES_SHOWN]
    return parts


def matrix(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Rows of cells with their counts and how strongly they are tinted, in percent."""
    counts = np.array(evaluation.test["confusion"])
    largest = max(1, counts.max())
    # The square root keeps a single mistake visible beside hundreds of right answers.
    tints = np.rint(85 * np.sqrt(counts / largest)).astype(int)
    return [
        {
            "label": label,
            "cells": [
                {"count": int(count), "tint": int(tint), "right": column == row}
                for column, (count, tint) in enumerate(zip(counts[row], tints[row], strict=True))
            ],
        }
        for row, label in enumerate(evaluation.labels)
    ]


def picture(evaluation: Evaluation) -> Markup | None:
    """A matrix of many classes as a picture; None if there are too many classes."""
    if not evaluation.test["confusion"]:
        return None
    return heatmap(
        "Rows of test by true and predicted class", np.array(evaluation.test["confusion"]), evaluation.labels
    )


def confused_pairs(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The pairs of classes that are confused most, with the share of the true class's rows."""
    labels, per_class = evaluation.labels, evaluation.test["per_class"]
    return [
        {
            "label": labels[row],
            "predicted": labels[column],
            "count": count,
            "share": count / per_class[row]["rows"],
        }
        for row, column, count in evaluation.test["confused"]
    ]


def shown_rows(worst: list[dict[str, Any]], dataset_directory: Path) -> list[dict[str, Any]]:
    """Rows of `test` as a report shows them: with `image`, or with `text` and the `prompt` before it.

    Args:
        worst: as `evaluation.json` names them.
        dataset_directory: where they are.
    """
    if not worst:
        return []
    dataset = Dataset(dataset_directory)
    rows = dataset.split("test").take(np.array([entry["row"] for entry in worst]))
    more: list[dict[str, str]]
    if "text" in worst[0]:
        return worst
    if "image" in rows:
        more = [{"image": image_data(image)} for image in rows["image"]]
    elif "input_ids" in rows and dataset.tokenizer:
        more = _texts(worst, rows, dataset.tokenizer)
    else:
        more = [{} for _ in worst]
    return [{**entry, **shown} for entry, shown in zip(worst, more, strict=True)]


def _texts(worst: list[dict[str, Any]], rows: dict[str, np.ndarray], directory: Path) -> list[dict[str, str]]:
    tokenizer = load_tokenizer(directory)
    width = rows["input_ids"].shape[1]
    shown = []
    for number, entry in enumerate(worst):
        length = int(rows["length"][number]) if "length" in rows else width
        place = slice(entry["start"], entry["stop"]) if "start" in entry else slice(0, length)
        tokens = rows["input_ids"][number, place]
        # Of a document that is scored apart, what stands before its first scored token is the prompt.
        first = int(np.argmax(rows["loss_mask"][number, place] != 0)) if "start" in entry else 0
        # A token is at least one character, so that the tokens of a long text need not all be read.
        parts = tokens[max(0, first - TEXT_SHOWN - 8) : first], tokens[first : first + TEXT_SHOWN + 8]
        # What stands between the texts of a pair is a special token.
        prompt, text = (tokenizer.decode(part.tolist(), skip_special_tokens=TYPE_IDS not in rows) for part in parts)
        shown.append({"prompt": _end_of(prompt), "text": _beginning_of(text)})
    return shown


def _beginning_of(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…"


def _end_of(text: str) -> str:
    return text if len(text) <= TEXT_SHOWN else f"…{text[-TEXT_SHOWN:]}"

"""The HTML report of `evaluate_checkpoints`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.components.evaluation.bootstrap import without_interval
from gpu_pipelines.numbers import figure
from gpu_pipelines.reports.charts import Line, line_chart
from gpu_pipelines.reports.page import image_data, render, write_page

CLASSES_IN_MATRIX = 25
CLASSES_SHOWN = 40
CONFUSED_PAIRS_SHOWN = 20
TEXT_SHOWN = 240
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
        dataset_directory: the dataset; the mistakes are shown from its test split.
        path: the HTML file.
    """
    classes = _classes(evaluation) if "per_class" in evaluation.test else []
    classifies = bool(evaluation.test.get("confusion"))
    small = classifies and len(evaluation.labels) <= CLASSES_IN_MATRIX
    metrics = evaluation.test["metrics"]
    sections = render(
        Path(__file__).with_name("report.html"),
        e=evaluation,
        figure=figure,
        unknown=without_interval(math.nan),
        metrics=list(metrics),
        epochs=any(scored["epoch"] is not None for scored in evaluation.checkpoints),
        intervals=any(metric["low"] is not None for metric in metrics.values()),
        charts=_charts(evaluation),
        classifies=classifies,
        classes=classes,
        hidden_classes=len(evaluation.labels) - len(classes),
        confusion=_matrix(evaluation) if small else [],
        confused=_confused_pairs(evaluation) if classifies and not small else [],
        mistakes=_mistakes(evaluation, dataset_directory),
    )
    write_page(path, f"Evaluation: {evaluation.model_name}", sections)


def _charts(evaluation: Evaluation) -> list[Any]:
    steps = [scored["step"] for scored in evaluation.checkpoints]
    best = next(scored["step"] for scored in evaluation.checkpoints if scored["name"] == evaluation.best)
    # The names of a user's own checkpoints say what their numbers count.
    counted = evaluation.best.partition("-")[0] if evaluation.scoring_function else "step"

    def chart(title: str, *names: str) -> Any:
        # None, which is no figure, leaves a gap.
        values = {name: [_or_nan(scored["val"][name]) for scored in evaluation.checkpoints] for name in names}
        lines = [Line(name, steps, values[name], dots=True) for name in names]
        return line_chart(title, counted, lines, mark=best)

    metrics = evaluation.test["metrics"]
    known = [] if evaluation.scoring_function else [c for c in CHARTS if all(name in metrics for name in c[1])]
    if known:
        return [chart(title, *names) for title, names in known]
    shown = sorted(metrics, key=lambda name: name != evaluation.select_by)[:CHARTS_OF_OWN_METRICS]
    return [chart(f"{name} on val", name) for name in shown]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _classes(evaluation: Evaluation) -> list[dict[str, Any]]:
    rows = [
        {"label": label, **figures}
        for label, figures in zip(evaluation.labels, evaluation.test["per_class"], strict=True)
    ]
    if len(rows) > CLASSES_SHOWN:
        rows = sorted(rows, key=lambda row: row["recall"])[:CLASSES_SHOWN]
    return rows


def _matrix(evaluation: Evaluation) -> list[dict[str, Any]]:
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


def _confused_pairs(evaluation: Evaluation) -> list[dict[str, Any]]:
    counts = np.array(evaluation.test["confusion"])
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:CONFUSED_PAIRS_SHOWN]
    pairs = [np.unravel_index(place, counts.shape) for place in order]
    return [
        {"label": evaluation.labels[row], "predicted": evaluation.labels[column], "count": int(counts[row, column])}
        for row, column in pairs
        if counts[row, column]
    ]


def _mistakes(evaluation: Evaluation, dataset_directory: Path) -> list[dict[str, Any]]:
    """The mistakes, each with its image or the beginning of its text where the dataset has them."""
    if not evaluation.mistakes:
        return []
    dataset = Dataset(dataset_directory)
    rows = dataset.split("test").take(np.array([mistake["row"] for mistake in evaluation.mistakes]))
    shown: list[dict[str, str]]
    if "image" in rows:
        shown = [{"image": image_data(image)} for image in rows["image"]]
    elif "input_ids" in rows and dataset.manifest.tokenizer:
        shown = [{"text": text} for text in _texts(rows, dataset_directory / dataset.manifest.tokenizer)]
    else:
        shown = [{} for _ in evaluation.mistakes]
    return [{**mistake, **more} for mistake, more in zip(evaluation.mistakes, shown, strict=True)]


def _texts(rows: dict[str, np.ndarray], tokenizer_directory: Path) -> list[str]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_directory / "tokenizer.json"))
    lengths = rows.get("length", np.full(len(rows["input_ids"]), rows["input_ids"].shape[1]))
    # A token is at least one character, so that the tokens of a long text need not all be read.
    texts = [
        tokenizer.decode(tokens[: min(length, TEXT_SHOWN + 8)].tolist())
        for tokens, length in zip(rows["input_ids"], lengths, strict=True)
    ]
    return [text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…" for text in texts]

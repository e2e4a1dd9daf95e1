"""The HTML report of `evaluate_checkpoints`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.reports.charts import Line, line_chart
from gpu_pipelines.reports.page import image_data, render, write_page

CLASSES_IN_MATRIX = 25
CLASSES_SHOWN = 40
CONFUSED_PAIRS_SHOWN = 20


def write_report(evaluation: Evaluation, dataset_directory: Path, path: Path) -> None:
    """Writes the report of an evaluation.

    Args:
        evaluation: what came of it.
        dataset_directory: the dataset; the mistakes are shown from its test split.
        path: the HTML file.
    """
    classes = _classes(evaluation)
    small = len(evaluation.labels) <= CLASSES_IN_MATRIX
    sections = render(
        Path(__file__).with_name("report.html"),
        e=evaluation,
        metrics=list(evaluation.test["metrics"]),
        charts=_charts(evaluation),
        classes=classes,
        hidden_classes=len(evaluation.labels) - len(classes),
        confusion=_matrix(evaluation) if small else [],
        confused=[] if small else _confused_pairs(evaluation),
        mistakes=_mistakes(evaluation, dataset_directory),
    )
    write_page(path, f"Evaluation: {evaluation.model_name}", sections)


def _charts(evaluation: Evaluation) -> list[Any]:
    steps = [scored["step"] for scored in evaluation.checkpoints]
    best = next(scored["step"] for scored in evaluation.checkpoints if scored["name"] == evaluation.best)

    def chart(title: str, *names: str) -> Any:
        lines = [
            Line(name, steps, [scored["val"][name] for scored in evaluation.checkpoints], dots=True) for name in names
        ]
        return line_chart(title, "step", lines, mark=best)

    return [chart("On val, by checkpoint", "accuracy", "macro_f1"), chart("Log loss on val (nats)", "log_loss")]


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
    if not evaluation.mistakes:
        return []
    test = Dataset(dataset_directory).split("test")
    images = test.take(np.array([mistake["row"] for mistake in evaluation.mistakes]))["image"]
    return [{**mistake, "image": image_data(image)} for mistake, image in zip(evaluation.mistakes, images, strict=True)]

"""The confusion matrix as a report shows it: each cell of a small one, a picture and the worst pairs of a large one."""

from __future__ import annotations

from typing import Any

import numpy as np
from markupsafe import Markup

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.reports.charts import heatmap

CLASSES_IN_TABLE = 25
CLASSES_IN_PICTURE = 1000
PAIRS_SHOWN = 20


def is_small(evaluation: Evaluation) -> bool:
    """Whether each cell can be shown with its number."""
    return len(evaluation.labels) <= CLASSES_IN_TABLE


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
    """A matrix of many classes as a picture; None where a pixel would be too small for a class."""
    if len(evaluation.labels) > CLASSES_IN_PICTURE:
        return None
    return heatmap(
        "Rows of test by true and predicted class", np.array(evaluation.test["confusion"]), evaluation.labels
    )


def confused_pairs(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The pairs of classes that are mixed up most, with the share of the true class's rows."""
    counts = np.array(evaluation.test["confusion"])
    rows = np.maximum([figures["rows"] for figures in evaluation.test["per_class"]], 1)
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:PAIRS_SHOWN]
    places = [np.unravel_index(place, counts.shape) for place in order]
    return [
        {
            "label": evaluation.labels[row],
            "predicted": evaluation.labels[column],
            "count": int(counts[row, column]),
            "share": float(counts[row, column] / rows[row]),
        }
        for row, column in places
        if counts[row, column]
    ]

"""The metrics of every classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.tasks.metric import ERROR, Metric
from gpu_pipelines.tasks.task import Task


class Classification(Task):
    """Rows of one class each."""

    has_classes = True
    metrics = {
        "accuracy": Metric(),
        "macro_f1": Metric(),
        "macro_recall": Metric(),
        "min_recall": Metric(),
        "roc_auc": Metric(),
        "ece": Metric(more_is_better=False),
        "log_loss": ERROR,
    }
    #: Figures of each class, of which the least or the mean can be gated on.
    figures = {
        f"per_class.{figure}.{end}": Metric() for figure in ("precision", "recall", "f1") for end in ("min", "mean")
    }
    scoring = "gpu_pipelines.tasks.classification.scoring:ClassificationScoring"

    def is_for(self, config: Mapping[str, Any]) -> bool:
        # transformers has one architecture for classes, for several classes in a row, and for numbers.
        if "regression" in config or config.get("problem_type") not in (None, "single_label_classification"):
            return False
        classes = config.get("id2label")
        return super().is_for(config) and (not classes or len(classes) > 1)

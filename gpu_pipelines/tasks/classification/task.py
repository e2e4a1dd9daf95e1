"""What every classifier is scored by."""

from __future__ import annotations

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

"""The summary of a version in lists, in a line."""

from __future__ import annotations

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.numbers import figure


def summary_of(evaluation: Evaluation) -> str:
    """A line for the list of versions: the test metrics and whether the model passed."""
    figures = ", ".join(f"{name} {figure(metric['value'])}" for name, metric in evaluation.test["metrics"].items())
    return f"{evaluation.best}: {figures} on {evaluation.test['rows']:,} test rows; " + (
        "passed its gates" if evaluation.passed else "did not pass its gates"
    )

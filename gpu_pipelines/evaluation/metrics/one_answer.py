"""Whether a model is better than the same answer for every row, which learns nothing from the rows."""

from __future__ import annotations

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.numbers import figure


def no_better_than_one_answer(evaluation: Evaluation) -> str:
    """That the metric which chooses is not, beyond chance, better than that of one answer; empty where it is, and where
    nothing is known of that.

    Args:
        evaluation: whose 95% interval decides; of too few rows for one, the value.
    """
    metric, found = evaluation.select_by, evaluation.test["metrics"][evaluation.select_by]
    other = evaluation.test.get("one_answer", {}).get(metric)
    value, end = found["value"], found["low" if evaluation.more_is_better else "high"]
    if other is None or value is None:
        return ""
    end = value if end is None else end
    if end > other if evaluation.more_is_better else end < other:
        return ""
    return (
        f"{metric} is {figure(value)} on test; a model that answers the same for every row has {figure(other)}, so "
        "this one may have learned nothing"
    )

"""Which models this project's server serves."""

from __future__ import annotations

from pathlib import Path

from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.tasks.tasks import task_named


def why_not_served(model: Path) -> str:
    """Why this project's server does not serve an exported model as it was evaluated; empty if it does.

    Args:
        model: its directory.
    """
    if not (model / EVALUATION).is_file():
        return f"the model has no {EVALUATION}"
    evaluation = Evaluation.load(model)
    if evaluation.scoring_function:
        return f"{evaluation.scoring_function} scores this model, and no server of this project serves it"
    if recipe := evaluation.configuration["settings"].get("recipe"):
        return f"the recipe {recipe} trained this model, and no server of this project serves it"
    task = task_named(evaluation.task)
    if not evaluation.configuration["settings"] and not task.serves_others:
        return "another program trained this model, and may prepare images in another way than the server"
    return "" if task.predictor else f"no server of this project serves the task {evaluation.task}"

"""Which models this project's server serves."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.tasks import TASKS, task_named


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


def task_of(directory: Path) -> str:
    """The task of an exported model: what its evaluation says, else what its config.json is for.

    Raises:
        UserError: this server has no way to serve it.
    """
    if (directory / EVALUATION).is_file():
        evaluation = Evaluation.load(directory)
        if evaluation.scoring_function:
            raise _not_served(directory, f"was scored by {evaluation.scoring_function}")
        if recipe := evaluation.configuration["settings"].get("recipe"):
            raise _not_served(directory, f"was trained by the recipe {recipe}")
        if not task_named(evaluation.task).predictor:
            raise _not_served(directory, f"is for the task {evaluation.task}")
        return evaluation.task
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        architectures = config["architectures"]
    except FileNotFoundError:
        raise UserError(f"{directory} is not an exported model: it has no config.json.") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{directory}/config.json names no architecture.") from None
    name = str(architectures[0]) if architectures else ""
    several_classes = TASKS["multi_label_classification"]
    if name.endswith(several_classes.architectures):
        # transformers has one architecture for classes, for several classes in a row, and for numbers.
        if "regression" in config:
            return "regression"
        if config.get("problem_type") == several_classes.name:
            return several_classes.name
        if config.get("problem_type") == "regression" or len(config.get("id2label") or ()) == 1:
            raise _not_served(directory, "gives a number for each row, and no classes")
    for task in TASKS.values():
        if task.predictor and name.endswith(task.architectures):
            return task.name
    raise _not_served(directory, f"has the architecture {', '.join(map(str, architectures))}")


def _not_served(directory: Path, why: str) -> UserError:
    return UserError(
        f"This server cannot serve the model in {directory}: it {why}.",
        "Serve it with a container of your own (serving_image of upload_model).",
    )

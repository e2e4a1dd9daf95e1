"""The models that this project's server serves."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_pipelines.artifacts.documents import read_document
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.artifacts.exported_model import EXPORT
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.tasks import TASKS, task_named

#: The formats of `models export` by the suffix of their files: the title, and a program that runs it.
_EXPORTS = {".onnx": ("ONNX", "ONNX Runtime"), ".gguf": ("GGUF", "llama.cpp")}


def why_not_served(model: Path) -> str:
    """Why this project's server does not serve an exported model as it was evaluated; empty if it does.

    Args:
        model: its directory.
    """
    if not (model / EVALUATION).is_file():
        return f"the model has no {EVALUATION}"
    evaluation = Evaluation.load(model)
    if why := _why_refused(evaluation):
        return f"the model {why}, and no server of this project serves it"
    if not evaluation.configuration["settings"] and not task_named(evaluation.task).serves_others:
        return "another program trained this model, and may prepare images differently from the server"
    return ""


def _why_refused(evaluation: Evaluation) -> str:
    """Why the server refuses a model, as in "it was scored by …"; empty if it serves it."""
    if evaluation.scoring_function:
        return f"was scored by {evaluation.scoring_function}"
    if recipe := evaluation.configuration["settings"].get("recipe"):
        return f"was trained by the recipe {recipe}"
    return "" if task_named(evaluation.task).predictor else f"is for the task {evaluation.task}"


def task_of(directory: Path) -> str:
    """The task of an exported model: from its evaluation, else from its config.json.

    Raises:
        UserError: this server cannot serve it.
    """
    if (directory / EVALUATION).is_file():
        evaluation = Evaluation.load(directory)
        if why := _why_refused(evaluation):
            raise _not_served(directory, why)
        _require_no_export(directory)
        return evaluation.task
    _require_no_export(directory)
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        names = ", ".join(map(str, config["architectures"]))
    except FileNotFoundError:
        raise UserError(f"{directory} is not an exported model: it has no config.json.") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{directory}/config.json names no architecture.") from None
    for task in TASKS.values():
        if task.predictor and task.is_for(config):
            return task.name
    learned = f" and the problem_type {problem}" if (problem := config.get("problem_type")) else ""
    classes = " and a single class" if len(config.get("id2label") or ()) == 1 else ""
    raise _not_served(directory, f"has the architecture {names}{learned}{classes}")


def _require_no_export(directory: Path) -> None:
    """Raises UserError for a folder with a model in the formats of `models export` alone."""
    if any(directory.glob("*.safetensors")):
        return
    for suffix, (title, runner) in _EXPORTS.items():
        if file := next(directory.glob(f"*{suffix}"), None):
            content = read_document(directory / EXPORT, "export") if (directory / EXPORT).is_file() else {}
            raise UserError(
                f"{directory} has {content.get('model', 'a model')} as {title}, which this server does not run.",
                "Serve the version that it was exported from: gpu-pipelines serve NAME@VERSION. "
                f"{runner} runs {file.name}.",
            )


def _not_served(directory: Path, why: str) -> UserError:
    return UserError(
        f"This server cannot serve the model in {directory}: it {why}.",
        "Serve it with a container of your own (serving_image of upload_model).",
    )

"""What predicts: an exported model with the preparation that it was trained with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.artifacts.integrity import require_undamaged
from gpu_pipelines.errors import UserError
from gpu_pipelines.serving.batching import Advance
from gpu_pipelines.serving.preparation import Pending
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.tasks import TASKS

#: Ends of the architectures' names in Hugging Face's config.json, by task.
_ARCHITECTURES = {
    "ForImageClassification": "image_classification",
    "ForSequenceClassification": "text_classification",
    "ForCausalLM": "causal_lm",
    "LMHeadModel": "causal_lm",
}


class Predictor(Protocol):
    """A model that is loaded.

    Attributes:
        task: what it is for.
        device: where it is.
        field: the one field of an instance.
        example: an instance that it can predict.
        labels: the classes; empty where there are none.
        advance: goes on with what `predict` left unfinished; None for a model that finishes everything at once.
        writes_at_once: rows that `advance` takes at once.
    """

    task: str
    device: torch.device
    field: str
    example: dict[str, Any]
    labels: list[str]
    advance: Advance | None
    writes_at_once: int

    def checked(self, parameters: Mapping[str, Any]) -> Any:
        """The parameters of a request. Raises `WrongRequest`."""

    def read(self, instance: Any, parameters: Any) -> Pending:
        """An instance, to be decoded, and what `checked` gave; called from several threads. Raises `WrongRequest`."""

    def predict(self, rows: Sequence[Any]) -> list[Any]:
        """A prediction for each row, in the terms of JSON, or an `Unfinished`; called from one thread."""


def load_predictor(directory: Path, settings: ServerSettings) -> Predictor:
    """Loads an exported model and predicts once with it.

    Args:
        directory: in Hugging Face layout.
        settings: limits of what it takes.

    Raises:
        UserError: it is not one that this server can serve, or a registered version whose files are damaged.
    """
    require_undamaged(directory)
    task = task_of(directory)
    if task == "image_classification":
        from gpu_pipelines.serving.image_classifier import ImageClassifier as Kind
    elif task == "text_classification":
        from gpu_pipelines.serving.text_classifier import TextClassifier as Kind  # type: ignore[assignment]
    else:
        from gpu_pipelines.serving.language_model import LanguageModel as Kind  # type: ignore[assignment]
    try:
        predictor = Kind(directory, settings, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"The model in {directory} cannot be loaded: {type(error).__name__}: {str(error)[:300]}"
        ) from error
    predictor.predict([predictor.read(predictor.example, predictor.checked({})).row()])
    return predictor


def name_of(directory: Path) -> str:
    """What a model is called in the routes of KServe's protocols: as it was evaluated, else `model`."""
    return Evaluation.load(directory).model_name if (directory / EVALUATION).is_file() else "model"


def task_of(directory: Path) -> str:
    """The task of an exported model: what its evaluation says, else what its architecture is for.

    Raises:
        UserError: this server has no way to serve it.
    """
    if (directory / EVALUATION).is_file():
        evaluation = Evaluation.load(directory)
        if evaluation.scoring_function:
            raise _not_served(directory, f"was scored by {evaluation.scoring_function}")
        if recipe := evaluation.configuration["settings"].get("recipe"):
            raise _not_served(directory, f"was trained by the recipe {recipe}")
        if evaluation.task not in TASKS:
            raise _not_served(directory, f"is for the task {evaluation.task}")
        return evaluation.task
    try:
        architectures = json.loads((directory / "config.json").read_text(encoding="utf-8"))["architectures"]
    except FileNotFoundError:
        raise UserError(f"{directory} is not an exported model: it has no config.json.") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{directory}/config.json names no architecture.") from None
    tasks = [task for end, task in _ARCHITECTURES.items() if architectures and str(architectures[0]).endswith(end)]
    if not tasks:
        raise _not_served(directory, f"has the architecture {', '.join(map(str, architectures))}")
    return tasks[0]


def _not_served(directory: Path, why: str) -> UserError:
    return UserError(
        f"This server cannot serve the model in {directory}: it {why}.",
        "Serve it with a container of your own (serving_image of upload_model).",
    )

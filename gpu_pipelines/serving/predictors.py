"""Chooses the predictor of an exported model by its task."""

from __future__ import annotations

from pathlib import Path

import torch

from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.artifacts.integrity import require_undamaged
from gpu_pipelines.errors import UserError
from gpu_pipelines.processors import compute_on_cores_alone
from gpu_pipelines.serving.predictor import Predictor
from gpu_pipelines.serving.served_models import task_of
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.tasks import task_named


def gpus_here() -> int:
    """How many GPUs PyTorch sees on this machine."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def load_predictor(directory: Path, settings: ServerSettings, threads: int = 0, device: str = "") -> Predictor:
    """Loads an exported model and predicts with it once.

    Args:
        directory: the model, in Hugging Face layout.
        settings: the limits of the server.
        threads: CPU threads of PyTorch in this process; 0 for one for each core.
        device: PyTorch's name of the device; empty for a GPU if there is one.

    Raises:
        UserError: this server cannot serve the model, or it is a registered version whose files are damaged.
    """
    require_undamaged(directory)
    task = task_named(task_of(directory))
    kind = task.load_predictor()
    if threads:
        torch.set_num_threads(threads)
    else:
        compute_on_cores_alone()
    try:
        predictor = kind(directory, settings, torch.device(device or ("cuda" if gpus_here() else "cpu")))
    except (OSError, KeyError, ValueError, TypeError, torch.OutOfMemoryError) as error:
        raise UserError(
            f"The model in {directory} cannot be loaded: {type(error).__name__}: {str(error)[:300]}"
        ) from error
    predictor.task = task.title
    predictor.predict([predictor.read(predictor.example, predictor.checked({})).row()])
    return predictor


def name_of(directory: Path) -> str:
    """The name of a model in the routes of KServe's protocols: as it was evaluated, else `model`."""
    return Evaluation.load(directory).model_name if (directory / EVALUATION).is_file() else "model"

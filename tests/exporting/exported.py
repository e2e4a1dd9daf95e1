"""Models that were trained for a moment and evaluated, to be exported."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.exporting.export import EXPORT, Exported, export_model
from gpu_pipelines.exporting.settings import ExportSettings
from gpu_pipelines.training.settings import TrainingSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from trainings import numbers_dataset, train_here

__all__ = ["evaluated", "export", "numbers_dataset"]


def evaluated(dataset: Path, folder: Path, model: str, **training: Any) -> Path:
    """The best checkpoint of a short training, as a registry would get it."""
    settings = TrainingSettings(
        model=model, **{"max_steps": 2, "checkpoint_every_steps": 2, "global_batch_size": 8, **training}
    )
    train_here(settings, dataset, str(folder / "checkpoints"))
    own = EvaluationSettings(registry=str(folder / "registry"), model_name="mine")
    evaluate_checkpoints(own, dataset, folder / "checkpoints", folder / "best", processes=1)
    return folder / "best"


def export(model: Path, dataset: Path, to: Path, **settings: Any) -> Exported:
    """Exports it, and looks whether what is said is there."""
    done = export_model(model, "mine version 1", Dataset(dataset), ExportSettings(to=str(to), **settings))
    assert json.loads((to / EXPORT).read_text())["files"].keys() == {
        path.name for path in to.iterdir() if path.name != EXPORT
    }
    return done

"""All components by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The folder of each component, by its name.
COMPONENTS = {
    "check_request": "check_request",
    "check_for_new_data": "data_watch",
    "prepare_data": "data_prep",
    "train_model": "training",
    "run_training_script": "training_script",
    "evaluate_checkpoints": "evaluation",
    "upload_model": "model_upload",
}


def load_component(name: str) -> Any:
    """The KFP component of that name."""
    return getattr(import_module(f"gpu_pipelines.components.{COMPONENTS[name]}.component"), name)

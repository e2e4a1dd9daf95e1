"""All components by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Where each component is defined, by its name: the folder of the step and a module in it.
COMPONENTS = {
    "check_request": "check_request.component",
    "check_for_new_data": "data_watch.component",
    "prepare_data": "data_prep.component",
    "train_model": "training.component",
    "run_training_script": "training.script_component",
    "evaluate_checkpoints": "evaluation.component",
    "upload_model": "model_upload.component",
}


def load_component(name: str) -> Any:
    """The KFP component of that name."""
    return getattr(import_module(f"gpu_pipelines.components.{COMPONENTS[name]}"), name)


def components_by_folder() -> dict[str, list[str]]:
    """Names of the components in each step's folder."""
    folders: dict[str, list[str]] = {}
    for name, module in COMPONENTS.items():
        folders.setdefault(module.partition(".")[0], []).append(name)
    return folders

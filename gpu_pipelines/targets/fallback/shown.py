"""The tries of a run in the cloud, by its name."""

from __future__ import annotations

from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings, load_project_settings
from gpu_pipelines.targets.fallback.tries import FOLDER, documents_in
from gpu_pipelines.targets.runs.names import NAMED_HERE, OF_KUBEFLOW


def tries_of_run(run: str, settings: ProjectSettings | None = None) -> dict[str, dict[str, Any]]:
    """The tries for the steps of a run in the cloud, by the names of the steps; empty if none are known.

    It looks in the pipeline root, and the place of checkpoints, of the project's settings.

    Args:
        run: its name; the name of a run on this machine has another form, and is ignored.
        settings: the settings to use; those of the project by default.
    """
    if not (NAMED_HERE.fullmatch(run) or OF_KUBEFLOW.fullmatch(run)):
        return {}
    settings = settings or load_project_settings()
    found: dict[str, dict[str, Any]] = {}
    for root in filter(None, dict.fromkeys((settings.pipeline_root, settings.checkpoints))):
        try:
            documents = documents_in(f"{root.rstrip('/')}/{FOLDER}/{run}")
        except UserError:
            continue
        found |= {name.removesuffix(".json").rpartition("-")[0]: each for name, each in documents.items()}
    return found

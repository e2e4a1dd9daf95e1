"""What `upload_model` does with its KFP inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.components.model_upload.upload import UploadSettings, upload_model
from gpu_pipelines.errors import user_errors_end_the_step
from gpu_pipelines.step_interface import fields_from, local_files


def run(arguments: Mapping[str, Any]) -> None:
    """Runs the step.

    Args:
        arguments: the inputs and artifacts of the component, by name.
    """
    with user_errors_end_the_step():
        settings = fields_from(UploadSettings, arguments)
        version = upload_model(settings, local_files(arguments["best_checkpoint"]), arguments["passed"])
        model = arguments["model"]
        model.uri = str(version.path.resolve())
        model.metadata.update(
            resource_name=f"{version.name}/versions/{version.number}",
            model_name=version.name,
            version=version.number,
            aliases=list(version.aliases),
        )

"""What `upload_model` does with its KFP inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.component_interface.step import fields_from, local_files, place_of, storage_of, with_advanced
from gpu_pipelines.errors import user_errors_end_the_step
from gpu_pipelines.registry.upload import UploadSettings, upload_model


def run(arguments: Mapping[str, Any]) -> None:
    """Runs the step.

    Args:
        arguments: the inputs and artifacts of the component, by name.
    """
    with user_errors_end_the_step():
        arguments = with_advanced(arguments)
        settings = fields_from(UploadSettings, arguments)
        model = arguments["model"]
        best = local_files(arguments["best_checkpoint"])
        version = upload_model(settings, best, arguments["passed"], storage_of(model))
        place_of(model, version.place)
        model.metadata.update(
            resource_name=version.resource_name,
            # As the schema google.VertexModel calls it, which is the artifact's type on Vertex AI.
            resourceName=version.resource_name,
            model_name=version.name,
            version=version.number,
            aliases=list(version.aliases),
            added=version.added,
        )

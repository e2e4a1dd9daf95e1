"""What `upload_model` does with its KFP inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.component_interface.step import local_folder, own_process, place_of, storage_of, with_advanced
from gpu_pipelines.registry.upload import UploadSettings, upload_model


def run(
    settings: UploadSettings,
    *,
    best_checkpoint: Any,
    model: Any,
    passed: bool,
    advanced: Mapping[str, Any],
) -> None:
    """Runs the step.

    Args:
        settings: the parameters that the component declares.
        best_checkpoint: a KFP artifact.
        model: a KFP artifact, which gets the version.
        passed: whether the model may become the champion.
        advanced: values of parameters by name, which win.
    """
    with own_process():
        settings = with_advanced(settings, advanced)
        with local_folder(best_checkpoint) as files:
            version = upload_model(settings, files, passed, storage_of(model))
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

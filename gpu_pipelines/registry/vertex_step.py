"""The image of the steps of a pipeline job on Vertex AI, from the job itself."""

from __future__ import annotations

import re
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.connection import pipeline_service, service_errors, tried_again
from gpu_pipelines.project_settings import ProjectSettings

#: The uploading step, whose image is used. Its component has this name, or one that ends with numbers.
_UPLOADS = re.compile(r"comp-upload-model(-\d+)*")
_PARAMETER = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")


def step_image(settings: ProjectSettings, pipeline_job: str) -> str:
    """The image of the uploading step; empty if the job may not be read, or does not name it.

    Args:
        settings: project and region.
        pipeline_job: the job's resource name.
    """
    from google.protobuf import json_format

    client: Any = pipeline_service(settings)
    try:
        with service_errors(f"Looking at {pipeline_job}"):
            job = client.get_pipeline_job(name=pipeline_job, retry=tried_again())
    except UserError as error:
        print(f"warning: the image of this step is not known. {error.problem}", flush=True)
        return ""
    content = json_format.MessageToDict(type(job).pb(job))
    spec = content.get("pipelineSpec", {})
    labels = {
        component.get("executorLabel")
        for name, component in spec.get("components", {}).items()
        if _UPLOADS.fullmatch(name)
    }
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    images = {executors[label].get("container", {}).get("image", "") for label in labels if label in executors}
    image = images.pop() if len(images) == 1 else ""
    if parameter := _PARAMETER.fullmatch(image):
        return _value_of(content, parameter[1])
    return "" if "{{" in image else image


def _value_of(job: dict[str, Any], parameter: str) -> str:
    """The value of the pipeline parameter for the image; steps have the pipeline's name for it, or a longer one."""
    name = parameter.removeprefix("pipelinechannel--")
    given = job.get("runtimeConfig", {}).get("parameterValues", {})
    declared = job["pipelineSpec"].get("root", {}).get("inputDefinitions", {}).get("parameters", {})
    return str(given.get(name, declared.get(name, {}).get("defaultValue", "")))

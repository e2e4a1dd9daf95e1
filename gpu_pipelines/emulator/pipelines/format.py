"""The format of compiled pipelines, parsed as strictly as by the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.transcoding import check_objects


def deployment_of(document: Mapping[str, Any]) -> Any:
    """The `PipelineDeploymentConfig` of a specification that `parsed_spec` takes."""
    deployment = pipeline_spec_pb2.PipelineDeploymentConfig()
    json_format.ParseDict(document.get("deploymentSpec", {}), deployment, ignore_unknown_fields=True)
    return deployment


def parsed_spec(document: dict[str, Any]) -> Any:
    """A `PipelineSpec` from JSON.

    Raises:
        ApiError: it is not one.
    """
    spec, deployment = pipeline_spec_pb2.PipelineSpec(), pipeline_spec_pb2.PipelineDeploymentConfig()
    check_objects(document, spec.DESCRIPTOR)
    try:
        json_format.ParseDict(document, spec)
        # Fields that this version of the format lacks cannot be run anyway; the rest is checked by type.
        json_format.ParseDict(document.get("deploymentSpec", {}), deployment, ignore_unknown_fields=True)
    except (json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ApiError(400, f"Failed to parse the pipeline spec: {error}") from error
    check_objects(document.get("deploymentSpec", {}), deployment.DESCRIPTOR, "deploymentSpec")
    if not (spec.pipeline_info.name and spec.root.dag.tasks):
        raise ApiError(400, "Failed to parse the pipeline spec: it has no name or no tasks.")
    return spec

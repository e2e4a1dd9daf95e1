"""Runs on Vertex AI Pipelines: the request for one, submitting it only once, reading and cancelling it."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpu_pipelines.dag.placement import LOOKING_STEPS
from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.connection import (
    REQUEST_SECONDS,
    location_of,
    pipeline_service,
    service_errors,
    tried_again,
)
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compiled import parsed_documents, required_pipeline
from gpu_pipelines.targets.spec_steps import tasks_in

#: The full name of a job.
FULL_NAME = re.compile(r"projects/[^/]+/locations/[^/]+/pipelineJobs/[^/]+")
#: Ids that the service accepts for a job (`CreatePipelineJobRequest.pipeline_job_id`).
_JOB_ID = re.compile(r"[a-z][-a-z0-9]{0,126}")


@dataclass(frozen=True)
class PipelineRequest:
    """A run to be submitted.

    Attributes:
        job_id: last part of the job's name. It is chosen here, so that a request that is sent twice creates one job.
        job: the `PipelineJob` as in the REST API.
    """

    job_id: str
    job: Mapping[str, Any]


def parsed_spec(text: str, origin: str) -> dict[str, Any]:
    """The pipeline in a compiled file.

    Args:
        text: content of the file.
        origin: name of the file in messages.

    Raises:
        UserError: it is not a compiled pipeline, or not one that Vertex AI accepts.
    """
    documents = parsed_documents(text, origin)
    if len(documents) > 1:
        raise UserError(
            f"{origin} has {len(documents)} YAML documents; Vertex AI takes one.",
            "It was compiled with settings for Kubernetes. Compile it with --target vertex.",
        )
    spec = documents[0] if documents else None
    if isinstance(spec, dict) and isinstance(spec.get("pipelineSpec"), dict):
        spec = spec["pipelineSpec"]
    return required_pipeline(spec, origin, "vertex")


def name_of(spec: Mapping[str, Any]) -> str:
    """Name of a compiled pipeline."""
    return str(spec["pipelineInfo"]["name"])


def pipeline_job(
    spec: Mapping[str, Any],
    arguments: Mapping[str, Any],
    settings: ProjectSettings,
    *,
    cache: bool | None = None,
    template: str | None = None,
) -> dict[str, Any]:
    """A `PipelineJob` as in the REST API.

    Args:
        spec: the compiled pipeline.
        arguments: values of its parameters, by name.
        settings: pipeline root, service account, network, key, failure policy and labels.
        cache: whether steps may take results of earlier runs; None leaves each step its own setting.
        template: address of the pipeline's version in Artifact Registry; None for none.
    """
    job: dict[str, Any] = {
        "displayName": name_of(spec),
        "runtimeConfig": {
            "gcsOutputDirectory": settings.pipeline_root,
            "parameterValues": {name: value for name, value in arguments.items() if value is not None},
        },
    }
    if template:
        job["templateUri"] = template
    if settings.labels:
        job["labels"] = dict(settings.labels)
    if settings.service_account:
        job["serviceAccount"] = settings.service_account
    if settings.network:
        job["network"] = settings.network
    if settings.network_attachment:
        job["pscInterfaceConfig"] = {"networkAttachment": settings.network_attachment}
    if settings.failure_policy:
        job["runtimeConfig"]["failurePolicy"] = f"PIPELINE_FAILURE_POLICY_FAIL_{settings.failure_policy.upper()}"
    if settings.encryption_key:
        job["encryptionSpec"] = {"kmsKeyName": settings.encryption_key}
    # Last, because it is a thousand lines in what a dry run prints.
    return {**job, "pipelineSpec": dict(spec) if cache is None else _with_caching(spec, cache)}


def _with_caching(spec: Mapping[str, Any], cache: bool) -> dict[str, Any]:
    changed: dict[str, Any] = copy.deepcopy(dict(spec))
    for name, task in tasks_in(changed):
        # Steps that check for changes must do so each time.
        task["cachingOptions"] = {"enableCache": cache and name not in LOOKING_STEPS}
    return changed


def submit(request: PipelineRequest, settings: ProjectSettings) -> str:
    """Submits a run. A request whose answer is lost is sent again; its id ensures that there is one job.

    Returns:
        The full name of the job.

    Raises:
        UserError: the service refuses it, or cannot be reached.
    """
    from google.api_core.exceptions import Conflict
    from google.cloud.aiplatform_v1.types import PipelineJob
    from google.protobuf import json_format

    client = pipeline_service(settings)
    message = PipelineJob()
    json_format.ParseDict(dict(request.job), PipelineJob.pb(message))
    tries = 0

    def send() -> Any:
        nonlocal tries
        tries += 1
        return client.create_pipeline_job(
            parent=location_of(settings),
            pipeline_job=message,
            pipeline_job_id=request.job_id,
            timeout=REQUEST_SECONDS,
            retry=None,
        )

    lost = f"Look whether it has begun: gpu-pipelines follow {request.job_id}. If there is no such job, submit again."
    with service_errors("Submitting the pipeline", lost):
        try:
            return str(tried_again()(send)().name)
        except Conflict:
            # At a first try it would be somebody else's job; at a later one it is ours, whose answer was lost.
            if tries == 1:
                raise
            return full_name(request.job_id, settings)
        except KeyboardInterrupt:
            raise UserError("Interrupted while the run was being submitted.", lost) from None


def full_name(job: str, settings: ProjectSettings) -> str:
    """The full name of a job, from its id or full name.

    Raises:
        UserError: it is neither.
    """
    if FULL_NAME.fullmatch(job):
        return job
    if not _JOB_ID.fullmatch(job):
        raise UserError(
            f"{job[:100]!r} is not the id of a run.", "Give what run --target vertex printed, or the job's full name."
        )
    settings.require("project", "region")
    return f"{location_of(settings)}/pipelineJobs/{job}"


def settings_of(job: str, settings: ProjectSettings) -> ProjectSettings:
    """Settings with the project and region of a job's full name, if it is one."""
    parts = job.split("/")
    return replace(settings, project=parts[1], region=parts[3]) if len(parts) == 6 else settings


def cancel(name: str, settings: ProjectSettings) -> None:
    """Requests the cancellation of a run, which also cancels its CustomJobs.

    Args:
        name: its full name.
        settings: project and region.

    Raises:
        UserError: there is no such run, or it has ended.
    """
    with service_errors(f"Cancelling {name.rpartition('/')[2]}"):
        pipeline_service(settings).cancel_pipeline_job(name=name, timeout=REQUEST_SECONDS, retry=tried_again())

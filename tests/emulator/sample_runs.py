"""Runs of pipelines on an emulator, and what they have left, as its API tells it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from google.protobuf import json_format

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

PARENT = "projects/example-project/locations/us-central1"
SAMPLES = Path(__file__).with_name("samples")


def run_spec(emulator: VertexApi, spec: dict[str, Any], **parameters: Any) -> Any:
    """Submits a pipeline and waits for its end."""
    from google.cloud import aiplatform_v1 as api

    runtime = {"gcsOutputDirectory": "gs://example-bucket/r", "parameterValues": parameters}
    job = api.PipelineJob.from_json(json.dumps({"displayName": "p", "pipelineSpec": spec, "runtimeConfig": runtime}))
    jobs = emulator.state.pipeline_jobs
    name = jobs.create(api.CreatePipelineJobRequest(parent=PARENT, pipeline_job=job)).name
    return ended(emulator, name)


def ended(emulator: VertexApi, name: str, seconds: float = 300) -> Any:
    """A pipeline job, once it has ended."""
    jobs, until = emulator.state.pipeline_jobs, time.monotonic() + seconds
    while jobs.one(name).state.name in ("PIPELINE_STATE_PENDING", "PIPELINE_STATE_RUNNING"):
        assert time.monotonic() < until
        time.sleep(0.05)
    return jobs.one(name)


def sample(name: str) -> dict[str, Any]:
    """A compiled pipeline of Kubeflow Pipelines' test data."""
    return dict(yaml.safe_load((SAMPLES / f"kfp/{name}.yaml").read_text()))


def outputs(job: Any, task: str = "") -> dict[str, Any]:
    """The output parameters of a task by their names; without one, those of the pipeline."""
    details = list(job.job_detail.task_details)
    (detail,) = [each for each in details[1:] if each.task_name == task] if task else details[:1]
    held = json_format.MessageToDict(type(detail).pb(detail)).get("execution", {}).get("metadata", {})
    return {key.removeprefix("output:"): value for key, value in held.items() if key.startswith("output:")}


def states(job: Any) -> dict[str, str]:
    """The state of each task."""
    return {task.task_name: task.state.name for task in list(job.job_detail.task_details)[1:]}

"""Custom jobs of a few lines, and what became of them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

PARENT = "projects/example-project/locations/us-central1"
L4 = {"machineType": "g2-standard-4", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}


def pool(*command: str, count: int = 1, machine: dict[str, Any] | None = None) -> dict[str, Any]:
    """A pool of replicas that run a command."""
    return {
        "machineSpec": machine or {"machineType": "n1-standard-4"},
        "replicaCount": str(count),
        "containerSpec": {"imageUri": "i", "command": list(command)},
    }


def create(emulator: VertexApi, *pools: dict[str, Any], name: str = "job", **spec: Any) -> str:
    """Creates a custom job; gives its name."""
    from google.cloud import aiplatform_v1 as api

    body = {"displayName": name, "jobSpec": {"workerPoolSpecs": list(pools), **spec}}
    job = api.CustomJob.from_json(json.dumps(body))
    made = emulator.state.custom_jobs.create(api.CreateCustomJobRequest(parent=PARENT, custom_job=job))
    return str(made.name)


def ended(emulator: VertexApi, name: str, seconds: float = 60) -> Any:
    """Waits for its end."""
    return emulator.state.custom_jobs.wait(name, seconds)


def await_message(emulator: VertexApi, text: str, times: int = 1, seconds: float = 60, job: str = "") -> None:
    """Waits until the log, or that of one job, has a line so often."""
    until = time.monotonic() + seconds
    of = {"job_id": job.rpartition("/")[2]} if job else {}
    while sum(text in line for line in emulator.state.logs.messages(**of)) < times:
        assert time.monotonic() < until, "\n".join(emulator.state.logs.messages(**of)[-30:])
        time.sleep(0.02)

"""Persistent resources: jobs run on those that there are, and are refused on others; the SDK and gcloud find them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from rehearsed_jobs import L4, PARENT, create, ended, pool

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.jobs.capacity import Capacity

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi


def make(emulator: VertexApi, key: str = "pool-1", count: int = 2, **more: Any) -> Any:
    from google.cloud import aiplatform_v1 as api

    body = {"resourcePools": [{"machineSpec": L4, "replicaCount": str(count)}], **more}
    asked = api.PersistentResource.from_json(json.dumps(body))
    request = api.CreatePersistentResourceRequest(parent=PARENT, persistent_resource=asked, persistent_resource_id=key)
    return emulator.state.persistent_resources.create(request)


def test_a_job_runs_on_machines_that_are_there_and_takes_no_others(vertex_emulator: VertexApi) -> None:
    make(vertex_emulator)
    vertex_emulator.state.replicas.capacity = Capacity({("us-central1", "NVIDIA_L4"): 0})
    on_it = pool("true", machine=L4)
    name = create(vertex_emulator, on_it, persistentResourceId="pool-1")
    assert ended(vertex_emulator, name).state.name == "JOB_STATE_SUCCEEDED"


@pytest.mark.parametrize(
    ("wanted", "spec", "message"),
    [
        (pool("true", machine=L4), {"persistentResourceId": "pool-2"}, "persistentResources/pool-2 is not found"),
        (pool("true"), {"persistentResourceId": "pool-1"}, "has no pool of 1 machines as in"),
        (
            pool("true", machine=L4),
            {"persistentResourceId": "pool-1", "network": "projects/1/global/networks/n"},
            "The network of the job",
        ),
    ],
)
def test_a_job_that_does_not_find_its_machines_is_refused(
    vertex_emulator: VertexApi, wanted: dict[str, Any], spec: dict[str, Any], message: str
) -> None:
    make(vertex_emulator)
    with pytest.raises(ApiError, match=message):
        create(vertex_emulator, wanted, **spec)
    assert vertex_emulator.state.custom_jobs.jobs == {}


@pytest.mark.parametrize(
    ("key", "more", "code", "message"),
    [
        ("Pool", {}, 400, "does not match"),
        ("p" * 64, {}, 400, "does not match"),
        ("p", {"resourcePools": []}, 400, "At least one resource pool"),
        ("p", {"labels": {"A": ""}}, 400, "Label A:  is invalid"),
        ("p", {"resourcePools": [{"machineSpec": {"machineType": "banana"}, "replicaCount": "1"}]}, 400, "banana"),
        ("p", {"resourceRuntimeSpec": {"raySpec": {}}}, 501, "no Ray cluster"),
        ("pool-1", {}, 409, "already exists"),
    ],
)
def test_what_cannot_be_made_is_refused(
    vertex_emulator: VertexApi, key: str, more: dict[str, Any], code: int, message: str
) -> None:
    make(vertex_emulator)
    with pytest.raises(ApiError, match=message) as caught:
        make(vertex_emulator, key, **more)
    assert caught.value.code == code
    assert len(vertex_emulator.state.persistent_resources.held) == 1


SDK = """
from google.cloud import aiplatform
aiplatform.init(project="example-project", location="us-central1", staging_bucket="gs://example-bucket")
container = {"image_uri": "i", "command": ["echo", "on it"]}
machine = {"machine_type": "g2-standard-4", "accelerator_type": "NVIDIA_L4", "accelerator_count": 1}
pools = [{"machine_spec": machine, "replica_count": 1, "container_spec": container}]
aiplatform.CustomJob("j", pools).submit(persistent_resource_id="pool-1")
try:
    aiplatform.CustomJob("k", pools).submit(persistent_resource_id="pool-9")
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.slow
def test_gcloud_and_the_sdk_find_it(vertex_emulator: VertexApi) -> None:
    make(vertex_emulator)
    listing = ["gcloud", "ai", "persistent-resources", "list", "--region", "us-central1", "--format", "value(name)"]
    assert vertex_emulator.answer_to(listing).strip().endswith("/persistentResources/pool-1")
    environment = {**os.environ, **vertex_emulator.environment()}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SDK], env=environment, capture_output=True, text=True, timeout=200
    )
    assert "NotFound" in done.stdout, done.stdout + done.stderr[-3000:]
    assert len(vertex_emulator.state.custom_jobs.jobs) == 1

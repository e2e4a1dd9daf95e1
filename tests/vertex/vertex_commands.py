"""The command line against the server that stands in for Google Cloud."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import command_line
from conftest import Finished

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

PROJECT_FILE = """\
pipeline_root: gs://example-bucket/runs
image: us-docker.pkg.dev/example-project/images/steps:0.1.0
repository: {url}/example-project/pipelines
"""


def command(api: VertexApi, folder: Path, *arguments: str) -> Finished:
    """Runs a command in this process.

    Args:
        api: the server.
        folder: where it runs; gets a gpu-pipelines.yaml unless it has one.
        arguments: as on the command line.
    """
    file = folder / "gpu-pipelines.yaml"
    if not file.exists():
        file.write_text(PROJECT_FILE.format(url=api.url))
    return command_line.command(*arguments, cwd=folder, environment=api.environment())


def connected_sdk(api: VertexApi) -> Any:
    """google-cloud-aiplatform over REST, connected to the server by its address, and with its bucket."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import aiplatform

    aiplatform.init(
        project="example-project",
        location="us-central1",
        staging_bucket="gs://example-bucket/root",
        api_endpoint=api.url,
        api_transport="rest",
        credentials=AnonymousCredentials(),
    )
    return aiplatform


def put_persistent_resource(api: VertexApi, machine_type: str, gpus: int) -> None:
    """Makes a persistent resource pool-1 of one machine with L4."""
    from google.cloud import aiplatform_v1

    machine = {"machine_type": machine_type, "accelerator_type": "NVIDIA_L4", "accelerator_count": gpus}
    made = aiplatform_v1.PersistentResource(resource_pools=[{"machine_spec": machine, "replica_count": 1}])
    parent = "projects/example-project/locations/us-central1"
    request = {"parent": parent, "persistent_resource": made, "persistent_resource_id": "pool-1"}
    api.state.persistent_resources.create(aiplatform_v1.CreatePersistentResourceRequest(request))


def put_texts(api: VertexApi) -> None:
    """Makes gs://example-bucket/texts a source with the columns text and label."""
    api.storage.put("texts/1.jsonl", b'{"text": "one", "label": "a"}\n{"text": "two", "label": "b"}\n')

"""The server that stands in for Google Cloud, against Google's own clients: what they write, it takes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from small_pipelines import compiled_sum

if TYPE_CHECKING:
    from vertex_api.server import VertexApi

GCLOUD_CONFIG = {
    "workerPoolSpecs": [
        {
            "machineSpec": {"machineType": "g2-standard-24", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 2},
            "replicaCount": 1,
            "containerSpec": {"imageUri": "us-docker.pkg.dev/p/r/i", "command": ["python", "-c", "print('hello')"]},
        }
    ]
}


def gcloud(api: VertexApi, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the real gcloud against the server."""
    return subprocess.run(
        ["gcloud", *arguments],
        env={**os.environ, **api.environment()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_gcloud_creates_describes_and_cancels_a_custom_job(vertex_api: VertexApi, tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    config.write_text(yaml.safe_dump(GCLOUD_CONFIG))
    created = gcloud(
        vertex_api, "ai", "custom-jobs", "create", f"--config={config}", "--display-name=hello", "--format=json"
    )
    assert created.returncode == 0, created.stderr
    name = json.loads(created.stdout)["name"]
    described = gcloud(vertex_api, "ai", "custom-jobs", "describe", name, "--format=json")
    assert json.loads(described.stdout)["state"] == "JOB_STATE_PENDING"
    cancelled = gcloud(vertex_api, "ai", "custom-jobs", "cancel", name)
    assert cancelled.returncode == 0, cancelled.stderr
    assert vertex_api.state.custom_jobs.state(name) == "JOB_STATE_CANCELLED"


@pytest.fixture
def sdk(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch) -> Any:
    """google-cloud-aiplatform, connected as this project connects it."""
    for name, value in vertex_api.environment().items():
        monkeypatch.setenv(name, value)
    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.vertex_connection import connect

    settings = ProjectSettings("example-project", "us-central1", "gs://example-bucket/root")
    aiplatform = connect(settings)
    yield aiplatform
    aiplatform.initializer.global_config.__init__()


def test_the_sdk_runs_a_custom_job_and_reads_its_end(vertex_api: VertexApi, sdk: Any) -> None:
    vertex_api.state.replicas.run_jobs()
    vertex_api.state.custom_jobs.hold_s = 5
    job = sdk.CustomJob.from_local_script
    job = sdk.CustomJob(
        "hello",
        [
            {
                "machine_spec": {
                    "machine_type": "g2-standard-24",
                    "accelerator_type": "NVIDIA_L4",
                    "accelerator_count": 2,
                },
                "replica_count": 1,
                "container_spec": {
                    "image_uri": "i",
                    "command": ["python", "-c", "print('hello'); raise SystemExit(3)"],
                },
            }
        ],
    )
    with pytest.raises(RuntimeError, match="non-zero status of 3"):
        job.run()
    print(vertex_api.state.logs.messages())
    print(sdk.CustomJob.list())


def test_pipelines(vertex_api, sdk, tmp_path):
    state = vertex_api.state
    file = compiled_sum(tmp_path)
    job = sdk.PipelineJob("sum", str(file), parameter_values={"a": 3})
    job.submit()
    state.pipeline_jobs.begin(job.resource_name)
    state.pipeline_jobs.set_task(job.resource_name, "add", "RUNNING")
    state.pipeline_jobs.say(job.resource_name, "add", ["hello"])
    for t in job.task_details:
        print(t)
    state.pipeline_jobs.end(job.resource_name, "SUCCEEDED")
    job.wait()
    print(len(sdk.PipelineJob.list()))
    job.delete()
    s = sdk.PipelineJob("sum", str(file), parameter_values={"a": 3}).create_schedule(
        cron="TZ=Europe/Berlin 0 3 * * *", display_name="n"
    )
    s.pause()
    print(s.state)
    s.resume(catch_up=True)
    s.update(cron="0 4 * * *", max_run_count=3)
    print(s.cron, s._gca_resource)
    s.delete()
    print(sdk.PipelineJobSchedule.list())


def test_registry(vertex_api, tmp_path):
    from kfp.registry import RegistryClient

    c = RegistryClient(f"{vertex_api.url}/example-project/pipelines")
    file = compiled_sum(tmp_path)
    p, v = c.upload_pipeline(str(file), tags=["v1", "latest"])
    print(p, v, c.list_packages(), c.get_package(p), c.list_versions(p), c.get_version(p, v), c.list_tags(p))
    c.create_tag(p, v, "other")
    c.update_tag(p, v, "other")
    c.delete_tag(p, "other")
    print(c.download_pipeline(p, tag="latest", file_name=str(tmp_path / "x.yaml")))
    assert (tmp_path / "x.yaml").read_bytes() == file.read_bytes()
    for t in ("v1", "latest"):
        c.delete_tag(p, t)
    assert c.delete_version(p, v)
    assert c.delete_package(p)

"""GCPC's launcher, unmodified, as its container runs it on Vertex AI Pipelines, on the payloads of compiled files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from small_pipelines import compiled_wait
from vertex_commands import put_persistent_resource

from gpu_pipelines.accelerators import plan
from gpu_pipelines.accelerators.catalog import load_catalog
from gpu_pipelines.accelerators.placement import usable_regions
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.vertex.placement.job_spec import JobOptions
from gpu_pipelines.targets.vertex.placement.mounts import dns_peerings, lustre_mounts
from gpu_pipelines.targets.vertex.target import VertexTarget

if TYPE_CHECKING:
    from gpu_pipelines.emulator.pipelines.payload import PipelineRun
    from gpu_pipelines.emulator.vertex_api import VertexApi

COMPILED = Path(__file__).parents[2] / "compiled/train_evaluate_upload/vertex/image_classification"
GPU_STEPS = ("train-model", "evaluate-checkpoints")
IMAGE = {"steps_image": "eu.example/steps:1"}


@contextmanager
def launcher_of(
    api: VertexApi, file: Path, task: str, run: PipelineRun, inputs: Any
) -> Iterator[subprocess.Popen[str]]:
    """The launcher of a task, started with this Python; it believes that it speaks to Google."""
    from single_tasks import container_command

    command = container_command(file, task, run, inputs)
    assert command[:4] == ["python3", "-u", "-m", "google_cloud_pipeline_components.container.v1.custom_job.launcher"]
    Path(command[command.index("--gcp_resources") + 1]).parent.mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, *command[1:]],
        env={**os.environ, **api.proxy_environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as launcher:
        try:
            yield launcher
        finally:
            launcher.kill()


@pytest.mark.slow
def test_a_compiled_training_on_two_nodes_leaves_one_set_of_outputs(vertex_api: VertexApi, tmp_path: Path) -> None:
    from single_tasks import executor_input_of

    from gpu_pipelines.emulator.pipelines.payload import PipelineRun

    prepare_data(PrepareSettings(source="sample:diabetes", task="regression"), tmp_path / "dataset")
    given = {**IMAGE, "model": "mlp-small", "global_batch_size": 16}
    run = PipelineRun(str(tmp_path / "root"), tmp_path / "files", given)
    file = COMPILED / "h100-mega-8-2-nodes.yaml"
    inputs = executor_input_of(file, "train-model", run, {"dataset": str(tmp_path / "dataset")})
    inputs["inputs"]["parameterValues"]["advanced"] = {"max_steps": 6, "checkpoint_every_steps": 3}
    state = vertex_api.state
    state.replicas.run_jobs(rehearse="cpu:1", GPU_PIPELINES_JOIN_TIMEOUT="60")
    state.custom_jobs.hold_s = 60
    with launcher_of(vertex_api, file, "train-model", run, inputs) as launcher:
        printed, _ = launcher.communicate(timeout=200)
    assert launcher.returncode == 0, printed + "\n".join(state.logs.messages())

    (job,) = state.custom_jobs.jobs.values()
    assert [pool.replica_count for pool in job.job_spec.worker_pool_specs] == [1, 1]
    resources = json.loads((tmp_path / "files" / "train-model" / "gcp_resources").read_text())
    assert resources["resources"][0]["resourceUri"] == f"https://us-central1-aiplatform.googleapis.com/v1/{job.name}"

    number = job.name.rpartition("/")[2]
    rank_0, worker = (state.logs.messages(job_id=number, task_name=f"workerpool{pool}-0") for pool in (0, 1))
    assert any("with 1 × cpu on each of 2 nodes" in line for line in rank_0)
    for line in ("step 6/6", "Wrote executor output file"):
        assert any(line in said for said in rank_0), rank_0
        assert not any(line in said for said in worker), worker
    checkpoints = tmp_path / "root" / "checkpoints" / run.placeholders("")["{{$.pipeline_job_uuid}}"]
    assert [path.parent.name for path in sorted(checkpoints.glob("*/checkpoint.json"))] == [
        "step-00000003",
        "step-00000006",
    ]
    assert len(list((checkpoints / "tensorboard").iterdir())) == 1
    steps = [json.loads(line)["step"] for line in (checkpoints / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert sorted(path.name for path in (tmp_path / "files" / "train-model").iterdir()) == [
        "executor_output.json",
        "gcp_resources",
    ]
    written = json.loads((tmp_path / "files" / "train-model" / "executor_output.json").read_text())
    assert written["artifacts"]["checkpoints"]["artifacts"][0]["uri"] == str(checkpoints)
    assert written["artifacts"]["checkpoints"]["artifacts"][0]["metadata"]["rehearsal"] is True


def test_a_launcher_that_is_stopped_cancels_its_job(vertex_api: VertexApi, tmp_path: Path) -> None:
    from single_tasks import executor_input_of

    from gpu_pipelines.emulator.pipelines.payload import PipelineRun

    run, file = PipelineRun(str(tmp_path / "root"), tmp_path / "files", IMAGE), compiled_wait(tmp_path)
    state = vertex_api.state
    state.replicas.run_jobs()
    # The launcher looks every 20 s; it is stopped while it waits for its first look.
    state.custom_jobs.hold_s = 60
    inputs = executor_input_of(file, "wait-for-the-end", run, {})
    with launcher_of(vertex_api, file, "wait-for-the-end", run, inputs) as launcher:
        until = time.monotonic() + 60
        while f"waiting in {run.root}/here" not in state.logs.messages():
            assert launcher.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        launcher.terminate()
        printed, _ = launcher.communicate(timeout=60)
    (name,) = state.custom_jobs.jobs
    assert state.custom_jobs.wait(name, 20).state.name == "JOB_STATE_CANCELLED", printed
    assert "saved" in state.logs.messages()


@pytest.mark.parametrize("file", sorted(COMPILED.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_service_takes_every_compiled_job(vertex_api: VertexApi, tmp_path: Path, file: Path) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.aiplatform_v1.services.job_service import JobServiceClient
    from google.cloud.aiplatform_v1.services.job_service.transports import JobServiceRestTransport
    from google_cloud_pipeline_components.container.v1.custom_job.remote_runner import create_custom_job_with_client
    from google_cloud_pipeline_components.container.v1.gcp_launcher.utils.json_util import recursive_remove_empty
    from single_tasks import executor_input_of, payload_of

    from gpu_pipelines.emulator.pipelines.payload import PipelineRun

    host = vertex_api.url.removeprefix("http://")
    transport = JobServiceRestTransport(host=host, credentials=AnonymousCredentials(), url_scheme="http")
    client = JobServiceClient(transport=transport)
    for task in GPU_STEPS:
        run = PipelineRun("gs://example-bucket/root", tmp_path, IMAGE, location=region_of(file, task))
        inputs = executor_input_of(file, task, run, {"dataset": "gs://b/d", "checkpoints": "gs://b/c"})
        job = recursive_remove_empty(json.loads(payload_of(file, task, run, inputs)))
        create_custom_job_with_client(client, f"projects/{run.project}/locations/{run.location}", job)
    assert len(vertex_api.state.custom_jobs.jobs) == len(GPU_STEPS)


@pytest.mark.slow
def test_the_service_takes_a_job_with_all_that_settings_can_say(vertex_api: VertexApi, tmp_path: Path) -> None:
    from single_tasks import executor_input_of

    from gpu_pipelines.emulator.pipelines.payload import PipelineRun

    settings = ProjectSettings(
        service_account="runner@example-project.iam.gserviceaccount.com",
        network_attachment="projects/p/regions/us-central1/networkAttachments/a",
        persistent_resource="pool-1",
        tensorboard="projects/p/locations/us-central1/tensorboards/1",
    )
    file, key = tmp_path / "all.yaml", "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"
    mounts = ["ip=10.1.2.3,filesystem=scratch,volume=v,mount=data"]
    options = JobOptions(lustre_mounts=lustre_mounts(mounts), dns_peerings=dns_peerings(["a.example.=p-name/n"]))
    file.write_text(VertexTarget(settings, options).text_of("train_evaluate_upload", plan("l4:4")))
    put_persistent_resource(vertex_api, "g2-standard-48", 4)
    run = PipelineRun("gs://example-bucket/root", tmp_path / "files", IMAGE, encryption_key=key)
    inputs = executor_input_of(file, "train-model", run, {"dataset": "gs://b/d"})
    with launcher_of(vertex_api, file, "train-model", run, inputs) as launcher:
        until = time.monotonic() + 120
        while not vertex_api.state.custom_jobs.jobs:
            assert launcher.poll() is None, launcher.communicate()[0]
            assert time.monotonic() < until
            time.sleep(0.05)
    (job,) = vertex_api.state.custom_jobs.jobs.values()
    assert job.encryption_spec.kms_key_name == key
    assert job.job_spec.psc_interface_config.network_attachment == settings.network_attachment
    assert job.job_spec.psc_interface_config.dns_peering_configs[0].domain == "a.example."
    assert job.job_spec.worker_pool_specs[0].lustre_mounts[0].mount_point == "data"
    assert job.job_spec.persistent_resource_id == "pool-1"
    assert job.job_spec.scheduling.timeout.days == 1


def region_of(file: Path, task: str) -> str:
    """A region that has the machine of a step."""
    component = yaml.load(file.read_bytes(), yaml.CSafeLoader)["components"][f"comp-{task}"]
    pools = component["inputDefinitions"]["parameters"]["worker_pool_specs"]["defaultValue"]
    spec, catalog = pools[0]["machine_spec"], load_catalog()
    gpu = next(gpu for gpu in catalog.gpus.values() if gpu.enum == spec["accelerator_type"])
    return usable_regions(catalog, gpu.name, [catalog.machine_types[spec["machine_type"]]])[0]

"""Data preparation on several machines of Vertex AI: a CustomJob without GPUs, run as the service runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from conftest import gpu_pipelines, set_variables, write_photos
from google.cloud.aiplatform_v1.types import CustomJobSpec
from google.protobuf import json_format
from small_pipelines import compiled_preparation
from vertex_commands import connected_sdk

from gpu_pipelines.accelerators import plan
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.vertex.placement.data_nodes import DataNodes
from gpu_pipelines.targets.vertex.placement.job_spec import JobOptions
from gpu_pipelines.targets.vertex.target import VertexTarget, require_runnable

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

SETTINGS = ProjectSettings(
    image="eu.example/steps:1",
    service_account="steps@example.com",
    labels={"team": "one"},
    tensorboard="tensorboards/1",
)


def values_of(spec: dict[str, Any], step: str) -> dict[str, Any]:
    parameters = spec["components"][f"comp-{step}"]["inputDefinitions"]["parameters"]
    return {name: parameter.get("defaultValue") for name, parameter in parameters.items()}


def test_prepare_data_becomes_a_custom_job_of_so_many_machines() -> None:
    target = VertexTarget(SETTINGS, JobOptions(environment={"A": "b"}), DataNodes(4))
    text = target.text_of("train_evaluate_upload", plan("l4:1"))
    require_runnable(text)
    spec = yaml.safe_load(text)
    values = values_of(spec, "prepare-data")
    job = CustomJobSpec()
    fields = ("timeout", "strategy", "restart_job_on_worker_restart")
    scheduling = {name: values[name] for name in fields}
    content = {"worker_pool_specs": values["worker_pool_specs"], "scheduling": scheduling}
    json_format.ParseDict(content, CustomJobSpec.pb(job))
    assert [pool.replica_count for pool in job.worker_pool_specs] == [1, 3]
    for pool in job.worker_pool_specs:
        assert pool.machine_spec.machine_type == "n2-standard-16"
        assert not pool.machine_spec.accelerator_count
        assert pool.container_spec.image_uri == "eu.example/steps:1"
        assert {variable.name: variable.value for variable in pool.container_spec.env} == {"A": "b"}
    assert not job.scheduling.restart_job_on_worker_restart, "a replica that is lost costs what it was doing"
    assert job.scheduling.strategy.name == "STANDARD"
    assert (values["service_account"], values["labels"]) == ("steps@example.com", {"team": "one"})
    assert not values["tensorboard"], "it has no curves"
    assert values["source"] == "sample:digits", "the step's own inputs are as they were"
    assert spec["root"]["dag"]["tasks"]["prepare-data"]["cachingOptions"] == {"enableCache": True}


def test_one_machine_of_a_type_is_a_job_as_well_and_none_named_a_plain_task() -> None:
    with_type, without = (
        yaml.safe_load(VertexTarget(data=nodes).text_of("train_evaluate_upload", plan("l4:1")))
        for nodes in (DataNodes(1, "n2-highmem-32"), DataNodes())
    )
    (pool,) = values_of(with_type, "prepare-data")["worker_pool_specs"]
    assert pool["machine_spec"] == {"machine_type": "n2-highmem-32"}
    assert "worker_pool_specs" not in values_of(without, "prepare-data")


def test_spot_machines_are_asked_for_even_if_it_is_one() -> None:
    for nodes in (1, 3):
        target = VertexTarget(data=DataNodes(nodes, strategy="spot"))
        values = values_of(yaml.safe_load(target.text_of("train_evaluate_upload", plan("l4:1"))), "prepare-data")
        assert values["strategy"] == "SPOT"
        assert not values["restart_job_on_worker_restart"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (DataNodes(0), "on 0 machines"),
        (DataNodes(2, "a2-highgpu-1g"), "'a2-highgpu-1g' is not a machine without GPUs"),
        (DataNodes(2, strategy="flex-start"), "by 'flex-start'; give standard or spot"),
    ],
)
def test_impossible_machines_are_refused(data: DataNodes, said: str) -> None:
    with pytest.raises(UserError, match=said):
        VertexTarget(data=data).text_of("train_evaluate_upload", plan("l4:1"))


def test_the_flags_of_compile(tmp_path: Path) -> None:
    flags = ["--data-nodes", "3", "--data-machine-type", "c2-standard-30", "--data-strategy", "spot"]
    done = gpu_pipelines(
        "compile", "train_evaluate_upload", "--target", "vertex", "--accelerator", "l4:1", *flags, cwd=tmp_path
    )
    assert done.status == 0, done.err
    spec = yaml.safe_load((tmp_path / "train_evaluate_upload.yaml").read_text())
    values = values_of(spec, "prepare-data")
    pools = values["worker_pool_specs"]
    assert values["strategy"] == "SPOT"
    assert [(p["machine_spec"]["machine_type"], p["replica_count"]) for p in pools] == [
        ("c2-standard-30", 1),
        ("c2-standard-30", 2),
    ]
    here = gpu_pipelines("compile", "train_evaluate_upload", *flags, cwd=tmp_path)
    assert here.status == 2
    assert "The target local has no --data-nodes" in here.err
    run = gpu_pipelines("run", "train_evaluate_upload", *flags, cwd=tmp_path)
    assert run.status == 2
    assert "The target local has no --data-nodes, --data-strategy, --data-machine-type." in run.err
    assert "They belong to kubeflow and vertex." in run.err


@pytest.mark.slow
def test_replicas_prepare_one_dataset_in_a_bucket(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, vertex_api.environment())
    from gpu_pipelines.emulator.running.pipelines import PipelineBackend

    file = compiled_preparation(tmp_path, nodes=2)
    sdk = connected_sdk(vertex_api)
    source = str(write_photos(tmp_path / "photos"))
    job = sdk.PipelineJob("prepare", str(file), parameter_values={"source": source}, job_id="p-1")
    job.submit()
    PipelineBackend(vertex_api, rehearse="").run(job.resource_name)
    lines = vertex_api.state.logs.messages()
    assert vertex_api.state.pipeline_jobs.one(job.resource_name).state.name == "PIPELINE_STATE_SUCCEEDED", "\n".join(
        lines
    )
    assert sum(line.startswith("Ray: node 0 (127.0.0.1) is the head of 2 machines") for line in lines) == 1
    assert sum(line.startswith("reading ") for line in lines) == 1, "rank 0 has the work, the other lends its cores"
    assert sum(line.startswith("kept 80 of 80 rows") for line in lines) == 1, "only rank 0 writes"
    from gpu_pipelines.artifacts.remote_files import RemoteFolder

    names = RemoteFolder("gs://example-bucket/root").names()
    (manifest,) = [name for name in names if name.endswith("dataset.json")]
    assert json.loads(RemoteFolder("gs://example-bucket/root").read(manifest))["rows_read"] == 80
    left = [name for name in names if "unfinished-preparations" in name or "ray-clusters" in name]
    assert not left, "what is finished is cleared away, and so is the token"

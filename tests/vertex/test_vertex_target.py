"""What a pipeline becomes on Vertex AI: its jobs are read with the API's own types, and each known trap is sprung."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform
from google.cloud.aiplatform_v1.types import CustomJobSpec
from google.protobuf import json_format
from kfp import dsl
from small_pipelines import tell_name

from gpu_pipelines.accelerators import plan, plan_request
from gpu_pipelines.accelerators.one_gpu import evaluation_memory_gb, evaluation_plan, one_gpu
from gpu_pipelines.component_interface.catalog import load_component
from gpu_pipelines.dag import PIPELINES, load_pipeline
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.step_environment import preemption_variables
from gpu_pipelines.targets.compiled import compiled
from gpu_pipelines.targets.published import file_of, published
from gpu_pipelines.targets.vertex.placement.data_nodes import DataNodes
from gpu_pipelines.targets.vertex.placement.job_spec import JobOptions
from gpu_pipelines.targets.vertex.target import VertexTarget, require_runnable
from gpu_pipelines.tasks.model_sizes import LARGEST_BUILT_IN, parameters_of_model

ROOT = Path(__file__).parents[2]
PIPELINE = "train_evaluate_upload"
GPU_STEPS = ("train-model", "evaluate-checkpoints")


def parsed(text: str) -> dict[str, Any]:
    return dict(yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def field(spec: dict[str, Any], step: str, name: str) -> Any:
    """Value that a step's CustomJob has for one of its fields."""
    return spec["components"][f"comp-{step}"]["inputDefinitions"]["parameters"][name].get("defaultValue")


def job_of(spec: dict[str, Any], step: str) -> CustomJobSpec:
    """The step's CustomJob as the API's own message; an unknown or mistyped field raises."""
    scheduling = {name: field(spec, step, name) for name in ("timeout", "strategy", "restart_job_on_worker_restart")}
    content = {"worker_pool_specs": field(spec, step, "worker_pool_specs"), "scheduling": scheduling}
    job = CustomJobSpec()
    json_format.ParseDict(content, CustomJobSpec.pb(job))
    return job


@pytest.fixture(scope="module")
def files() -> dict[str, tuple[Any, str]]:
    plans = [plan_request(request) for request in published()]
    # That they are what is compiled now is held by tests/layout.
    folder = ROOT / "compiled" / PIPELINE / "vertex" / "image_classification"
    return {file_of(planned): (planned, (folder / file_of(planned)).read_text(encoding="utf-8")) for planned in plans}


def test_every_file_is_what_its_plan_says(files: dict[str, tuple[Any, str]]) -> None:
    assert len(files) == len(published())
    for name, (planned, text) in files.items():
        spec = parsed(text)
        job = job_of(spec, "train-model")
        assert [pool.replica_count for pool in job.worker_pool_specs] == (
            [1] if planned.nodes == 1 else [1, planned.nodes - 1]
        ), name
        for pool in job.worker_pool_specs:
            assert pool.machine_spec.machine_type == planned.machine_type, name
            assert pool.machine_spec.accelerator_type.name == planned.accelerator_type, name
            assert pool.machine_spec.accelerator_count == planned.count, name
            assert pool.disk_spec.boot_disk_type == planned.boot_disk_type, name
            assert {variable.name: variable.value for variable in pool.container_spec.env} == {
                "GPU_PIPELINES_ACCELERATOR": planned.spec,
                **preemption_variables(planned.strategy),
            }
        assert job.scheduling.strategy.name == planned.scheduling_strategy, name
        assert job.scheduling.timeout.days == 1
        assert job.scheduling.restart_job_on_worker_restart == (planned.nodes > 1), name


def test_machines_that_do_not_start_from_pd_ssd_get_their_disk(files: dict[str, tuple[Any, str]]) -> None:
    for name in ("h200-8.yaml", "b200-8.yaml", "rtx-pro-6000-8.yaml"):
        job = job_of(parsed(files[name][1]), "train-model")
        assert job.worker_pool_specs[0].disk_spec.boot_disk_type == "hyperdisk-balanced", name


def test_the_evaluation_has_one_machine_with_one_gpu_where_that_is_sold(files: dict[str, tuple[Any, str]]) -> None:
    expected = {
        "l4-4.yaml": ("g2-standard-8", 1),
        "h100-8-4-nodes.yaml": ("g2-standard-8", 1),  # one H100 alone is sold as spot and flex-start only
        "h100-2-spot.yaml": ("a3-highgpu-1g", 1),
        "a100-16.yaml": ("a2-highgpu-1g", 1),
    }
    for name, (machine, count) in expected.items():
        job = job_of(parsed(files[name][1]), "evaluate-checkpoints")
        assert len(job.worker_pool_specs) == 1
        assert job.worker_pool_specs[0].machine_spec.machine_type == machine, name
        assert job.worker_pool_specs[0].machine_spec.accelerator_count == count, name


@pytest.mark.parametrize(
    ("spec", "chosen", "billions", "machine"),
    [
        ("h100:8", {}, 0.1, "g2-standard-8"),
        ("h100:8", {"region": "us-central1"}, 2, "g2-standard-8"),
        ("h100:8", {}, 3, "a2-highgpu-1g"),
        ("h100:8", {}, 8, "a2-ultragpu-1g"),
        ("h100:8", {"region": "us-west4"}, 8, "g4-standard-48"),
        ("h100:8", {}, 10, "g4-standard-48"),
        # Twice this model is held by no GPU that is sold alone, the model without a champion is.
        ("h100:8", {}, 15, "a2-ultragpu-1g"),
        ("h100:8", {}, None, "a2-highgpu-1g"),
        ("h100:8", {"strategy": "spot"}, 0.1, "a3-highgpu-1g"),
        ("b200:8", {"strategy": "flex-start"}, 8, "a2-ultragpu-1g"),
        ("v100:8", {}, 0.1, "n1-highmem-4"),
        ("v100:8", {}, 2, "g2-standard-8"),
        ("a100:16", {"nodes": 4}, 0.1, "a2-highgpu-1g"),
        ("h100:8", {}, 70, "a3-highgpu-8g"),
        ("h100:8", {"reservation": "projects/p/zones/us-central1-a/reservations/r"}, 0.1, "a3-highgpu-8g"),
    ],
)
def test_a_model_is_evaluated_on_the_smallest_gpu_that_holds_it(
    spec: str, chosen: dict[str, Any], billions: float | None, machine: str
) -> None:
    training = plan(spec, **chosen)
    found = evaluation_plan(training, billions and billions * 1e9)
    assert (found.machine_type, found.nodes) == (machine, 1)
    assert (found.region, found.strategy) == (training.region, training.strategy)
    assert found.gpu is not None
    if found.count == 1 and billions:
        assert found.gpu.memory_gb >= evaluation_memory_gb(billions * 1e9, models=1)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("convnext-micro", 1.3),
        ("meta-llama/Llama-3.1-8B-Instruct", 8),
        ("Qwen/Qwen2.5-0.5B", 0.5),
        ("mistralai/Mixtral-8x7B-v0.1", 56),
        ("facebook/opt-125m", 0.125),
        ("EleutherAI/pythia-1.4b-deduped", 1.4),
        ("01-ai/Yi-6B-200K", 6),
        ("google/vit-base-patch16-224", None),
        ("microsoft/Phi-3-mini-4k-instruct", None),
        ("gs://bucket/7b/model/", None),
    ],
)
def test_the_size_of_a_model_is_what_its_name_says(name: str, billions: float | None) -> None:
    assert parameters_of_model(name) == (billions and pytest.approx(billions * 1e9))
    assert parameters_of_model(name, "package.module:Mine") is None


@pytest.mark.slow  # it imports torch and transformers
def test_no_model_that_is_built_from_its_name_is_larger_than_it_is_taken_for() -> None:
    # The vocabulary is the tokenizer's, and the largest part of the largest model but its layers.
    import torch

    from gpu_pipelines.tasks.text_architectures import language_model

    with torch.device("meta"):
        model = language_model("llama-1b", {"vocab_size": 128_256}, 1024)
    size = sum(weight.numel() for weight in model.parameters())
    assert 0.9 * LARGEST_BUILT_IN < size <= LARGEST_BUILT_IN


def test_the_evaluation_stays_on_the_machine_type_of_a_reservation() -> None:
    training = plan("l4:4", nodes=2, reservation="projects/p/zones/us-central1-a/reservations/r")
    assert one_gpu(training).machine_type == training.machine_type
    assert one_gpu(training).nodes == 1


def test_the_sdk_takes_every_file(files: dict[str, tuple[Any, str]], tmp_path: Any) -> None:
    for name, (_, text) in files.items():
        path = tmp_path / name
        path.write_text(text)
        job = aiplatform.PipelineJob(
            display_name=name,
            template_path=str(path),
            pipeline_root="gs://bucket/root",
            parameter_values={"source": "gs://bucket/data", "epochs": 2.0, "steps_image": "i"},
            project="project",
            location="us-central1",
            credentials=AnonymousCredentials(),
        )
        assert job.pipeline_spec["pipelineInfo"]["name"] == "train-evaluate-upload"


def test_a_step_is_process_1_of_its_container_so_that_it_gets_sigterm(files: dict[str, tuple[Any, str]]) -> None:
    spec = parsed(files["l4-4.yaml"][1])
    for step in GPU_STEPS:
        command = list(job_of(spec, step).worker_pool_specs[0].container_spec.command)
        assert any("; exec python3 -m kfp.dsl.executor_main" in part for part in command), step
    handled = spec["deploymentSpec"]["executors"]["exec-train-model"]["container"]
    assert "google_cloud_pipeline_components.container.v1.custom_job.launcher" in handled["command"]


def test_only_data_preparation_is_cached(files: dict[str, tuple[Any, str]]) -> None:
    tasks = parsed(files["l4-4.yaml"][1])["root"]["dag"]["tasks"]
    cached = {name: task["cachingOptions"].get("enableCache", False) for name, task in tasks.items()}
    assert cached == {
        "check-request": False,
        "prepare-data": True,
        "train-model": False,
        "evaluate-checkpoints": False,
        "upload-model": False,
    }


def test_steps_without_gpu_are_plain_tasks_with_cpus_and_memory(files: dict[str, tuple[Any, str]]) -> None:
    executors = parsed(files["l4-4.yaml"][1])["deploymentSpec"]["executors"]
    for step in ("check-request", "prepare-data", "upload-model"):
        resources = executors[f"exec-{step}"]["container"]["resources"]
        assert float(resources["resourceCpuLimit"]) <= 96, "the most that the service takes"
        assert resources["resourceMemoryLimit"]


def test_settings_and_options_come_to_the_jobs() -> None:
    settings = ProjectSettings(
        image="europe-docker.pkg.dev/p/r/steps:1",
        service_account="runner@p.iam.gserviceaccount.com",
        network="projects/1/global/networks/n",
        persistent_resource="pool-1",
        encryption_key="projects/p/locations/l/keyRings/r/cryptoKeys/k",
        tensorboard="projects/p/locations/l/tensorboards/1",
        labels={"team": "vision"},
    )
    options = JobOptions(boot_disk_gb=500, web_access=True, environment={"NCCL_DEBUG": "INFO"})
    spec = parsed(VertexTarget(settings, options).text_of(PIPELINE, plan("l4:4", hours=5)))
    for step in GPU_STEPS:
        pool = job_of(spec, step).worker_pool_specs[0]
        assert pool.container_spec.image_uri == settings.image
        assert pool.disk_spec.boot_disk_size_gb == 500
        assert {v.name: v.value for v in pool.container_spec.env}["NCCL_DEBUG"] == "INFO"
        assert field(spec, step, "service_account") == settings.service_account
        assert field(spec, step, "network") == settings.network
        assert field(spec, step, "persistent_resource_id") == "pool-1"
        assert field(spec, step, "encryption_spec_key_name") == settings.encryption_key
        assert field(spec, step, "tensorboard") == settings.tensorboard
        assert field(spec, step, "labels") == {"team": "vision"}
        assert field(spec, step, "enable_web_access") is True
        assert field(spec, step, "timeout") == "18000s"
        assert field(spec, step, "base_output_directory").startswith("{{$.pipeline_root}}/")
    container = spec["deploymentSpec"]["executors"]["exec-prepare-data"]["container"]
    assert container["image"] == settings.image
    assert container["env"] == [{"name": "NCCL_DEBUG", "value": "INFO"}]


def test_the_key_of_the_run_reaches_every_job_and_the_registered_model() -> None:
    from google_cloud_pipeline_components._placeholders import ENCRYPTION_SPEC_KMS_KEY_NAME_PLACEHOLDER

    spec = parsed(VertexTarget(data=DataNodes(2)).text_of(PIPELINE, plan("l4:4")))
    for step in ("prepare-data", *GPU_STEPS):
        assert field(spec, step, "encryption_spec_key_name") == ENCRYPTION_SPEC_KMS_KEY_NAME_PLACEHOLDER
    given = spec["root"]["dag"]["tasks"]["upload-model"]["inputs"]["parameters"]["encryption_key"]
    assert given == {"runtimeValue": {"constant": ENCRYPTION_SPEC_KMS_KEY_NAME_PLACEHOLDER}}
    assert "encryption_key" not in spec["root"]["inputDefinitions"]["parameters"], "it is no field of the form"


def test_steps_end_after_a_day_or_the_hours_that_are_given() -> None:
    for hours, timeout in ((None, "86400s"), (5, "18000s")):
        spec = parsed(VertexTarget(data=DataNodes(2)).text_of(PIPELINE, plan("l4:4", hours=hours)))
        assert {field(spec, step, "timeout") for step in GPU_STEPS} == {timeout}
        assert field(spec, "prepare-data", "timeout") == "86400s"


def test_the_registered_model_is_of_the_type_that_the_console_and_gcpc_know() -> None:
    from google_cloud_pipeline_components.types.artifact_types import VertexModel
    from google_cloud_pipeline_components.v1.endpoint import EndpointCreateOp, ModelDeployOp

    planned, target = plan("l4:1"), VertexTarget(ProjectSettings(image="i"))
    for name in (name for name in PIPELINES if name != "batch_prediction"):
        spec = parsed(compiled(load_pipeline(name).build(target, planned)))
        model = spec["components"]["comp-upload-model"]["outputDefinitions"]["artifacts"]["model"]["artifactType"]
        assert model == {"schemaTitle": VertexModel.schema_title, "schemaVersion": VertexModel.schema_version}

    # What a user puts behind it: a component of GCPC, which takes no other type, and one for artifacts of any type.
    @dsl.pipeline(name="mine")
    def mine():  # type: ignore[no-untyped-def]
        best = dsl.importer("gs://b/best", dsl.Model, reimport=False)
        uploaded = target.place(load_component("upload_model"), None)(best_checkpoint=best.output)
        endpoint = EndpointCreateOp(display_name="mine")
        ModelDeployOp(model=uploaded.outputs["model"], endpoint=endpoint.outputs["endpoint"])
        tell_name(model=uploaded.outputs["model"])

    assert "comp-model-deploy" in parsed(compiled(mine))["components"]


def test_flex_start_waits_as_long_as_it_is_told() -> None:
    planned = plan("a100:8", strategy="flex-start", hours=100)
    spec = parsed(VertexTarget(options=JobOptions(max_wait_hours=0)).text_of(PIPELINE, planned))
    assert field(spec, "train-model", "strategy") == "FLEX_START"
    assert field(spec, "train-model", "max_wait_duration") == "0s"
    assert field(spec, "train-model", "timeout") == "360000s"


def test_a_reservation_is_in_every_pool() -> None:
    name = "projects/p/zones/us-central1-a/reservations/r"
    spec = parsed(VertexTarget().text_of(PIPELINE, plan("a100:8", nodes=2, reservation=name)))
    for pool in job_of(spec, "train-model").worker_pool_specs:
        assert pool.machine_spec.reservation_affinity.reservation_affinity_type.name == "SPECIFIC_RESERVATION"
        assert list(pool.machine_spec.reservation_affinity.values) == [name]


def test_reduction_servers_are_a_third_pool_of_the_training_alone() -> None:
    options = JobOptions(reduction_server=True)
    spec = parsed(VertexTarget(options=options).text_of(PIPELINE, plan("a100:16", nodes=8)))
    pools = job_of(spec, "train-model").worker_pool_specs
    assert [pool.replica_count for pool in pools] == [1, 7, 25], "the example of Google's page: 8 × a2-megagpu-16g"
    assert pools[2].machine_spec.machine_type == "n1-highcpu-16"
    assert not pools[2].machine_spec.accelerator_count
    assert "reductionserver" in pools[2].container_spec.image_uri
    assert len(job_of(spec, "evaluate-checkpoints").worker_pool_specs) == 1


@pytest.mark.parametrize("name", ["timeout", "location", "labels", "strategy", "service_account", "network"])
def test_an_input_with_the_name_of_a_jobs_field_is_refused(name: str, tmp_path: Path) -> None:
    component = dsl.component(base_image="i", install_kfp_package=False)(function_with(name, tmp_path))
    with pytest.raises(UserError, match=name):
        VertexTarget().place(component, plan("l4:1"))


def function_with(parameter: str, folder: Path) -> Any:
    """A function with one parameter of that name, in a file, where KFP looks for its source."""
    path = folder / "step_of_a_user.py"
    path.write_text(f"def step({parameter}: str = ''):\n    print({parameter})\n")
    namespace = runpy.run_path(str(path))
    return namespace["step"]


def test_resources_on_a_job_are_refused_because_they_would_be_the_launchers() -> None:
    target = VertexTarget()

    @dsl.pipeline(name="mine")
    def mine():  # type: ignore[no-untyped-def]
        prepared = target.place(load_component("prepare_data"), None)()
        trained = target.place(load_component("train_model"), plan("l4:1"))(dataset=prepared.outputs["dataset"])
        trained.set_cpu_limit("8")

    with pytest.raises(UserError, match="train-model sets CPUs"):
        require_runnable(compiled(mine))


def test_a_file_of_two_documents_is_refused() -> None:
    with pytest.raises(UserError, match="2 YAML documents"):
        require_runnable("deploymentSpec: {executors: {}}\n---\nplatforms: {kubernetes: {}}\n")
    settings = {"platforms": {"kubernetes": {"deploymentSpec": {"executors": {"exec-clean": {}, "exec-train": {}}}}}}
    with pytest.raises(UserError, match="The second is for Kubernetes, of clean, train"):
        require_runnable(f"deploymentSpec: {{executors: {{}}}}\n---\n{yaml.safe_dump(settings)}\n")


def test_a_plan_of_this_machine_is_refused() -> None:
    with pytest.raises(UserError, match="cpu:2 is for this machine"):
        VertexTarget().text_of(PIPELINE, plan("cpu:2"))


def test_the_environment_does_not_change_a_file(files: dict[str, tuple[Any, str]], monkeypatch: Any) -> None:
    for name in ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_AI_REGION", "GPU_PIPELINES_REHEARSE", "GPU_PIPELINES_ACCELERATOR"):
        monkeypatch.setenv(name, "cpu:2")
    planned, text = files["l4-4.yaml"]
    assert VertexTarget().text_of(PIPELINE, planned, task="image_classification") == text

"""What a pipeline becomes on Kubeflow: its pods, as KFP makes them, are held against the types of Kubernetes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from driver import CompiledFile
from kubernetes_api.types import problems_of_pod

from gpu_pipelines.accelerators import plan, plan_request
from gpu_pipelines.accelerators.request import PlanRequest
from gpu_pipelines.dag import PUBLISHED
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings, load_project_settings
from gpu_pipelines.targets.kubeflow.in_cluster.train_job_manifest import manifest_of
from gpu_pipelines.targets.kubeflow.kubeflow import Kubeflow
from gpu_pipelines.targets.kubeflow.placement.data_nodes import DataNodes
from gpu_pipelines.targets.kubeflow.placement.pods import usable_cpus, usable_memory_gib
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import JobRequest, TrainJobSpec, runtime_for
from gpu_pipelines.targets.kubeflow.target import KubeflowTarget
from gpu_pipelines.targets.published import file_of

ROOT = Path(__file__).parents[2]
PIPELINE, TASK = "train_evaluate_upload", "causal_lm"
GPU_STEPS = ("train-model", "evaluate-checkpoints")


def accelerators(pipeline: str) -> tuple[PlanRequest, ...]:
    """Those that the files of a pipeline are published for."""
    options = [each.options for each in Kubeflow.published() if (each.pipeline, each.task or TASK) == (pipeline, TASK)]
    return tuple(PlanRequest(each.accelerator, nodes=each.nodes, strategy=each.strategy) for each in options)


def published(pipeline: str) -> dict[str, tuple[Any, CompiledFile]]:
    """Plan and compiled file of each published accelerator, by the file's name."""
    plans = [plan_request(request) for request in accelerators(pipeline)]
    # That they are what is compiled now is held by tests/layout.
    folder = ROOT / "compiled" / pipeline / "kubeflow" / (TASK if pipeline == PIPELINE else "")
    return {file_of(p): (p, CompiledFile((folder / file_of(p)).read_text(encoding="utf-8"))) for p in plans}


@pytest.fixture(scope="module")
def files() -> dict[str, tuple[Any, CompiledFile]]:
    return published(PIPELINE)


def main_of(pod: dict[str, Any]) -> dict[str, Any]:
    return pod["spec"]["containers"][0]


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in main_of(pod)["env"]}


@pytest.mark.parametrize("pipeline", PUBLISHED)
def test_every_pod_of_every_file_is_one_of_kubernetes(pipeline: str) -> None:
    files = published(pipeline)
    assert len(files) == len(accelerators(pipeline))
    for name, (_, file) in files.items():
        assert set(file.configurations) == set(file.executors), name
        for label in file.executors:
            assert problems_of_pod(file.pod(label.removeprefix("exec-"))) == [], f"{name} {label}"


def test_the_pod_of_the_training_asks_for_the_gpus_and_the_nodes_of_the_plan(
    files: dict[str, tuple[Any, CompiledFile]],
) -> None:
    for name, (planned, file) in files.items():
        if planned.nodes > 1 or planned.strategy == "spot":
            continue
        pod = file.pod("train-model")
        resources = main_of(pod)["resources"]
        assert resources["limits"]["nvidia.com/gpu"] == str(planned.count), name
        assert 1 <= int(resources["requests"]["cpu"]) < planned.machine.vcpus, name
        assert "cpu" not in resources["limits"]
        memory = int(resources["requests"]["memory"].removesuffix("Gi"))
        assert planned.machine.memory_gb * 0.6 < memory < planned.machine.memory_gb, name
        selector = pod["spec"]["nodeSelector"]
        assert selector["cloud.google.com/gke-accelerator"] == planned.gpu.gke_label, name
        assert "cloud.google.com/gke-spot" not in selector, name
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
        (shared,) = [v["emptyDir"] for v in pod["spec"]["volumes"] if v["name"] == "shared-memory"]
        assert shared["medium"] == "Memory"
        assert 1 <= int(shared["sizeLimit"].removesuffix("Gi")) < memory, name
        assert {"name": "shared-memory", "mountPath": "/dev/shm"} in main_of(pod)["volumeMounts"]
        assert variables(pod)["GPU_PIPELINES_ACCELERATOR"] == planned.spec


def train_job_of(file: CompiledFile, step: str) -> dict[str, Any]:
    """What a step makes a TrainJob of."""
    flag, text, separator, *_ = file.container(step)["args"]
    assert (flag, separator) == ("--train-job", "--")
    job: dict[str, Any] = json.loads(text)
    return job


def test_steps_on_spot_nodes_are_train_jobs_which_start_again() -> None:
    """Kubeflow Pipelines does not start a pod again that failed, and its retries end within the first hour."""
    file = CompiledFile(KubeflowTarget().text_of(PIPELINE, plan("h100:2", strategy="spot")))
    for step in GPU_STEPS:
        job = train_job_of(file, step)
        assert (job["nodes"], job["restarts"], job["hours"]) == (1, 10, 168)
        assert job["needs"]["gpus"] == (2 if step == "train-model" else 1)
        assert job["needs"]["node_selector"]["cloud.google.com/gke-spot"] == "true"
        assert {"key": "cloud.google.com/gke-spot", "value": "true"} in job["needs"]["tolerations"]
        pod = file.pod(step)
        assert "nodeSelector" not in pod["spec"], "what waits for it runs elsewhere"
        assert "nvidia.com/gpu" not in main_of(pod)["resources"]["limits"]
        assert file.pipeline.root.dag.tasks[step].retry_policy.max_retry_count == 0
    standard = CompiledFile(KubeflowTarget().text_of(PIPELINE, plan("h100:8")))
    assert main_of(standard.pod("train-model"))["resources"]["limits"]["nvidia.com/gpu"] == "8"


@pytest.mark.parametrize(
    ("accelerator", "runtime"),
    [
        ("h100:8", "gpu-pipelines-tcpx"),
        ("h100-mega:8", "gpu-pipelines-tcpxo"),
        ("h200:8", "gpu-pipelines-rdma"),
        ("b200:8", "gpu-pipelines-rdma"),
        ("a100:8", "torch-distributed"),
        ("l4:4", "torch-distributed"),
    ],
)
def test_nodes_with_a_network_for_gpus_use_it_or_are_refused(accelerator: str, runtime: str) -> None:
    several = plan(accelerator, nodes=2)
    assert runtime_for(several, None) == runtime
    assert runtime_for(several, "mine") == "mine"
    assert runtime_for(plan(accelerator), None) == "torch-distributed", "one node has nobody to talk to"
    if runtime != "torch-distributed":
        with pytest.raises(UserError, match="would use the ordinary network") as refused:
            runtime_for(several, "torch-distributed")
        assert f"take {runtime} by leaving kubeflow_runtime out" in refused.value.remedy
        file = CompiledFile(KubeflowTarget().text_of(PIPELINE, several))
        assert train_job_of(file, "train-model")["runtime"] == runtime


def test_several_nodes_of_gb200_need_a_runtime_of_ones_own() -> None:
    reserved = plan("gb200:4", nodes=2, reservation="projects/p/zones/us-central1-a/reservations/r")
    with pytest.raises(UserError, match="and there is no runtime for it here"):
        KubeflowTarget(ProjectSettings(node_pool="grace")).text_of(PIPELINE, reserved)
    settings = ProjectSettings(node_pool="grace", kubeflow_runtime="mine")
    assert train_job_of(CompiledFile(KubeflowTarget(settings).text_of(PIPELINE, reserved)), "train-model")


def test_a_secret_becomes_a_variable_of_every_step(tmp_path: Path) -> None:
    (tmp_path / "gpu-pipelines.yaml").write_text("secret_env: {HF_TOKEN: huggingface/token}\n")
    settings = load_project_settings(directory=tmp_path)
    for planned in (plan("l4:1"), plan("l4:1", nodes=2)):
        file = CompiledFile(KubeflowTarget(settings).text_of(PIPELINE, planned))
        for step in ("prepare-data", *GPU_STEPS, "upload-model"):
            pod = file.pod(step)
            (variable,) = [each for each in main_of(pod)["env"] if each["name"] == "HF_TOKEN"]
            assert variable == {
                "name": "HF_TOKEN",
                "valueFrom": {"secretKeyRef": {"name": "huggingface", "key": "token", "optional": False}},
            }
            assert problems_of_pod(pod) == []
    assert train_job_of(file, "train-model")["secrets"] == {"HF_TOKEN": "huggingface/token"}


@pytest.mark.parametrize("given", ["{HF_TOKEN: hf_abcdef}", "{1TOKEN: a/b}", "{HF_TOKEN: A_B/c}", "hf_abcdef"])
def test_a_secret_that_is_none_is_refused_and_not_repeated(tmp_path: Path, given: str) -> None:
    (tmp_path / "gpu-pipelines.yaml").write_text(f"secret_env: {given}\n")
    with pytest.raises(UserError, match="SECRET/KEY") as refused:
        load_project_settings(directory=tmp_path)
    assert "hf_abcdef" not in str(refused.value)


def test_checkpoints_are_on_the_claim_in_a_folder_of_the_run(files: dict[str, tuple[Any, CompiledFile]]) -> None:
    _, file = files["l4-1.yaml"]
    task = file.pipeline.root.dag.tasks["train-model"]
    uri = task.inputs.parameters["checkpoint_uri"].runtime_value.constant.string_value
    assert uri == "/mnt/gpu-pipelines/checkpoints/${GPU_PIPELINES_RUN}"
    for step in ("prepare-data", *GPU_STEPS, "upload-model"):
        pod = file.pod(step)
        assert {"name": "gpu-pipelines", "mountPath": "/mnt/gpu-pipelines"} in main_of(pod)["volumeMounts"], step
        assert variables(pod)["GPU_PIPELINES_STORAGE"] == "/mnt/gpu-pipelines"
        (run,) = [variable for variable in main_of(pod)["env"] if variable["name"] == "GPU_PIPELINES_RUN"]
        assert run["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['pipeline/runid']"
    assert file.pipeline.root.input_definitions.parameters["registry"].default_value.string_value == (
        "/mnt/gpu-pipelines/registry"
    )


def test_with_a_bucket_nothing_is_mounted() -> None:
    settings = ProjectSettings(checkpoints="gs://bucket/folder/", project="my-project", region="us-central1")
    file = CompiledFile(KubeflowTarget(settings).text_of(PIPELINE, plan("l4:1")))
    uri = file.pipeline.root.dag.tasks["train-model"].inputs.parameters["checkpoint_uri"]
    assert uri.runtime_value.constant.string_value == "gs://bucket/folder/checkpoints/${GPU_PIPELINES_RUN}"
    pod = file.pod("upload-model")
    assert not [volume for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume]
    assert variables(pod)["GOOGLE_CLOUD_PROJECT"] == "my-project"
    assert file.pipeline.root.input_definitions.parameters["registry"].default_value.string_value == "vertex://"


def test_settings_come_to_the_pods() -> None:
    settings = ProjectSettings(
        image="eu.example/steps:1", node_pool="gpus", pull_secret="registry", kueue_queue="gpus", volume_claim="mine"
    )
    file = CompiledFile(KubeflowTarget(settings, {"NCCL_DEBUG": "INFO"}).text_of(PIPELINE, plan("l4:1", hours=5)))
    pod = file.pod("train-model")
    assert pod["spec"]["activeDeadlineSeconds"] == 5 * 3600
    assert problems_of_pod(pod) == []
    assert main_of(pod)["image"] == settings.image
    assert pod["spec"]["nodeSelector"]["cloud.google.com/gke-nodepool"] == "gpus"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert variables(pod)["NCCL_DEBUG"] == "INFO"
    assert {"name": "mine", "mountPath": "/mnt/gpu-pipelines"} in main_of(pod)["volumeMounts"]
    prepare = file.pod("prepare-data")
    assert "nodeSelector" not in prepare["spec"]
    assert "kueue.x-k8s.io/queue-name" not in prepare["metadata"]["labels"], "the queue is of GPUs"
    assert prepare["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_several_nodes_are_a_train_job_whose_step_has_no_gpu(files: dict[str, tuple[Any, CompiledFile]]) -> None:
    planned, file = files["h100-8-4-nodes.yaml"]
    pod = file.pod("train-model")
    assert "nvidia.com/gpu" not in main_of(pod)["resources"]["limits"]
    assert "nodeSelector" not in pod["spec"]
    container = file.container("train-model")
    assert container["command"] == ["python3", "-m", "gpu_pipelines.targets.kubeflow.in_cluster.train_job"]
    command, job = container["args"][3:], train_job_of(file, "train-model")
    assert job["nodes"] == 4
    assert job["needs"]["gpus"] == planned.count
    assert job["needs"]["node_selector"] == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    assert job["volume_claim"] == "gpu-pipelines"
    assert any("; exec python3 -m kfp.dsl.executor_main" in part for part in command)
    assert command[-4:] == ["--executor_input", "{{$}}", "--function_to_execute", "train_model"]
    assert main_of(file.pod("evaluate-checkpoints"))["resources"]["limits"]["nvidia.com/gpu"]


def test_only_data_preparation_is_cached(files: dict[str, tuple[Any, CompiledFile]]) -> None:
    tasks = files["l4-4.yaml"][1].pipeline.root.dag.tasks
    assert [name for name, task in tasks.items() if task.caching_options.enable_cache] == ["prepare-data"]
    looked = tasks["prepare-data"].inputs.parameters["source_fingerprint"].task_output_parameter
    assert looked.producer_task == "check-request", "the key of what is kept holds the data itself"
    name = tasks["check-request"].inputs.parameters["run_name"].runtime_value.constant.string_value
    assert name == "{{$.pipeline_job_name}}", "KFP's client may let the server keep all steps"


def test_gke_leaves_as_much_of_a_machine_as_its_page_says() -> None:
    # By hand after https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes: 25 % of the first 4 GiB,
    # 20 % of the next 4, 10 % of the next 8, 6 % of the next 112, 2 % of the rest, and 0.1 GiB; then what we leave.
    kept = 1 + 0.8 + 0.8 + 0.06 * 112 + 0.02 * (1872 - 128) + 0.1
    assert usable_memory_gib(1872) == math.floor(1872 - kept - 0.02 * 1872 - 1)
    assert usable_memory_gib(15) == math.floor(15 - (1 + 0.8 + 0.7 + 0.1) - 0.02 * 15 - 1)
    # 6 % of the first CPU, 1 % of the second, 0.5 % of the next two.
    assert usable_cpus(4) == math.floor(4 - 0.08 - 0.5)


def test_a_reservation_needs_its_node_pool() -> None:
    reserved = plan("a100:8", reservation="projects/p/zones/us-central1-a/reservations/r")
    with pytest.raises(UserError, match="node_pool"):
        KubeflowTarget().text_of(PIPELINE, reserved)
    file = CompiledFile(KubeflowTarget(ProjectSettings(node_pool="reserved")).text_of(PIPELINE, reserved))
    assert file.pod("train-model")["spec"]["nodeSelector"]["cloud.google.com/gke-nodepool"] == "reserved"


def test_flex_start_and_arm_have_their_labels() -> None:
    flex = CompiledFile(KubeflowTarget().text_of(PIPELINE, plan("a100:8", strategy="flex-start")))
    assert flex.pod("train-model")["spec"]["nodeSelector"]["cloud.google.com/gke-flex-start"] == "true"
    queued = {"key": "cloud.google.com/gke-queued", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    assert queued in flex.pod("train-model")["spec"]["tolerations"]
    name = "projects/p/zones/us-central1-a/reservations/r"
    arm = KubeflowTarget(ProjectSettings(node_pool="grace")).text_of(PIPELINE, plan("gb200:4", reservation=name))
    tolerations = CompiledFile(arm).pod("train-model")["spec"]["tolerations"]
    assert {"key": "kubernetes.io/arch", "operator": "Equal", "value": "arm64", "effect": "NoSchedule"} in tolerations


def test_a_plan_of_this_machine_is_refused() -> None:
    with pytest.raises(UserError, match="cpu:2 is for this machine"):
        KubeflowTarget().text_of(PIPELINE, plan("cpu:2"))


def test_the_environment_does_not_change_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    before = KubeflowTarget().text_of(PIPELINE, plan("l4:4"))
    for name in ("GOOGLE_CLOUD_PROJECT", "GPU_PIPELINES_STORAGE", "GPU_PIPELINES_RUN", "KF_PIPELINES_ENDPOINT"):
        monkeypatch.setenv(name, "x")
    assert KubeflowTarget().text_of(PIPELINE, plan("l4:4")) == before


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda pod: pod["spec"].update(nodeSelectors={}), "nodeSelectors is no field"),
        (lambda pod: pod["spec"]["tolerations"].append({"key": 1}), "is 1, no str"),
        (lambda pod: pod["spec"]["containers"][0]["resources"]["limits"].update(cpu="8 cores"), "no quantity"),
        (lambda pod: pod["spec"]["volumes"].pop(), "is no volume"),
    ],
)
def test_what_kubernetes_would_refuse_is_seen(
    files: dict[str, tuple[Any, CompiledFile]], change: Any, told: str
) -> None:
    pod = files["l4-1.yaml"][1].pod("train-model")
    change(pod)
    assert any(told in problem for problem in problems_of_pod(pod))


def test_data_is_prepared_on_so_many_nodes_which_may_be_spot_and_else_nothing_changes() -> None:
    settings = ProjectSettings(image="eu.example/steps:1", kubeflow_service_account="steps", node_pool="gpus")
    alone = CompiledFile(KubeflowTarget(settings, {"A": "b"}).text_of(PIPELINE, plan("l4:1")))
    target = KubeflowTarget(settings, {"A": "b"}, DataNodes(4, "spot"))
    file = CompiledFile(target.text_of(PIPELINE, plan("l4:1")))
    option, job, *_ = file.container("prepare-data")["args"]
    spec = TrainJobSpec.loads(job)
    assert (option, spec.nodes, spec.is_elastic, spec.queue) == ("--train-job", 4, True, "")
    assert (spec.needs.cpus, spec.needs.memory_gib, spec.needs.gpus) == (8, 32, 0)
    assert spec.needs.shared_memory_gib
    assert spec.needs.node_selector == {"cloud.google.com/gke-spot": "true"}, "the node pool is that of the GPUs"
    work = "/mnt/gpu-pipelines/unfinished-preparations"
    assert spec.environment == {"A": "b", "GPU_PIPELINES_UNFINISHED_WORK": work}
    assert spec.restarts == 10
    assert target.for_check == {"place": "kubeflow", "data_nodes": 4}
    manifest = manifest_of(JobRequest("prepare-data-1", spec, ["true"], {}), "ClusterTrainingRuntime")
    assert "nvidia.com/gpu" not in manifest["spec"]["trainer"]["resourcesPerNode"]["limits"]
    assert main_of(file.pod("prepare-data"))["resources"]["requests"] == {"cpu": "1", "memory": "2Gi"}, "it waits"
    others = [label for label in file.executors if label not in ("exec-prepare-data", "exec-check-request")]
    assert [file.executors[label] for label in others] == [alone.executors[label] for label in others]


def test_data_on_nodes_that_there_are_not_is_refused() -> None:
    for nodes, said in ((DataNodes(0), "on 0 nodes"), (DataNodes(2, "flex"), "by 'flex'; give standard or spot")):
        with pytest.raises(UserError, match=said):
            KubeflowTarget(data=nodes).text_of(PIPELINE, plan("l4:1"))

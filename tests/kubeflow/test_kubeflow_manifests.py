"""The manifests in docs/kubeflow.md are what Kubernetes and Kubeflow Trainer take, strictly."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from kubeflow_trainer_api import models
from kubernetes_api.server import RUNTIME
from kubernetes_api.strict import problems_of_model
from kubernetes_api.train_jobs import TrainJob
from kubernetes_api.types import problems_of, problems_of_pod
from manifests import manifests, yaml_blocks

from gpu_pipelines.accelerators import plan
from gpu_pipelines.project_settings import ProjectSettings, load_project_settings
from gpu_pipelines.targets.kubeflow.in_cluster.train_job_manifest import manifest_of
from gpu_pipelines.targets.kubeflow.placement.pods import pod_needs
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import JobRequest, TrainJobSpec, runtime_for

#: The names of the resources of CRDs: Trainer's (manifests/base/crds of https://github.com/kubeflow/trainer), KubeRay's
#: and Katib's.
RESOURCES = {
    "trainer.kubeflow.org": {"trainjobs", "trainingruntimes", "clustertrainingruntimes"},
    "ray.io": {"rayjobs"},
    "kubeflow.org": {"experiments"},
    "": {"pods", "pods/log", "events"},
}
VERBS = {"create", "get", "list", "watch", "update", "patch", "delete"}


def of_kind(kind: str) -> list[dict[str, Any]]:
    found = [document for document in manifests() if document["kind"] == kind]
    assert found, kind
    return found


def runtimes() -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in of_kind("ClusterTrainingRuntime")}


def test_the_roles_are_of_the_types_of_kubernetes_and_name_what_there_is() -> None:
    for binding_kind, role_kind in (("RoleBinding", "Role"), ("ClusterRoleBinding", "ClusterRole")):
        (binding,), (role,) = of_kind(binding_kind), of_kind(role_kind)
        assert problems_of(f"V1{role_kind}", role) == []
        assert problems_of(f"V1{binding_kind}", binding) == []
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
        for rule in role["rules"]:
            (group,) = rule["apiGroups"]
            assert set(rule["resources"]) <= RESOURCES[group]
            assert set(rule["verbs"]) <= VERBS


def test_the_job_that_gives_the_claim_to_the_user_of_the_image_is_one_of_kubernetes() -> None:
    (job,) = of_kind("Job")
    assert problems_of("V1Job", job) == []
    template = job["spec"]["template"]
    assert problems_of_pod({"apiVersion": "v1", "kind": "Pod", **template}) == []
    assert "10001" in " ".join(template["spec"]["containers"][0]["command"])


@pytest.mark.parametrize("name", ["gpu-pipelines", "gpu-pipelines-tcpx", "gpu-pipelines-tcpxo", "gpu-pipelines-rdma"])
def test_the_runtimes_are_strictly_of_kubeflow_trainer(name: str) -> None:
    runtime = runtimes()[name]
    assert problems_of_model(models.TrainerV1alpha1ClusterTrainingRuntime, runtime, "runtime") == []
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["template"]["spec"]["backoffLimit"] == 0, "the first failure counts"
    template = job["template"]["spec"]["template"]
    assert problems_of_pod({"apiVersion": "v1", "kind": "Pod", "metadata": {}, **template}) == []


def test_a_field_that_trainer_has_removed_is_seen() -> None:
    for where, field in ((("spec", "mlPolicy", "torch"), "numProcPerNode"), (("spec",), "tmplate")):
        runtime = copy.deepcopy(runtimes()["gpu-pipelines"])
        place = runtime
        for name in where:
            place = place[name]
        place[field] = "auto"
        model = models.TrainerV1alpha1ClusterTrainingRuntime
        assert problems_of_model(model, runtime, "runtime") == [f"unknown field runtime.{'.'.join(where)}.{field}"]


def test_the_test_servers_runtime_is_strictly_of_kubeflow_trainer() -> None:
    assert problems_of_model(models.TrainerV1alpha1ClusterTrainingRuntime, RUNTIME, "runtime") == []


@pytest.mark.parametrize("accelerator", ["h100:8", "h100-mega:8", "h200:8", "b200:8", "a100:8"])
def test_the_pods_of_a_train_job_have_the_network_of_its_runtime(accelerator: str, tmp_path: Path) -> None:
    planned = plan(accelerator, nodes=2)
    chosen = runtime_for(planned, None)
    spec = TrainJobSpec(
        "train-model",
        "image",
        2,
        pod_needs(planned, ProjectSettings()),
        "/mnt/gpu-pipelines",
        chosen,
        "gpu-pipelines",
        "/mnt/gpu-pipelines",
    )
    manifest = manifest_of(JobRequest("x", spec, ["true"], {}), "ClusterTrainingRuntime")
    pod = TrainJob(manifest, tmp_path, {}, {**runtimes(), "torch-distributed": RUNTIME}[chosen], {}).pod
    assert problems_of_pod(pod) == []
    interfaces = json.loads(pod["metadata"].get("annotations", {}).get("networking.gke.io/interfaces", "[]"))
    # A NIC for each GPU, or on A3 High one for two, besides the ordinary one.
    expected = {"gpu-pipelines-tcpx": 5, "gpu-pipelines-tcpxo": 9, "gpu-pipelines-rdma": 9, "torch-distributed": 0}
    assert len(interfaces) == expected[chosen]
    names = [each["interfaceName"] for each in interfaces]
    assert len(set(names)) == len(names)
    if "tcpx" in chosen:
        (daemon,) = pod["spec"]["initContainers"]
        assert daemon["restartPolicy"] == "Always", "a sidecar, which ends with the training"
        assert f"devices.gke.io/container.{daemon['name']}" in pod["metadata"]["annotations"]


def test_the_settings_are_accepted(tmp_path: Path) -> None:
    (settings,) = [block for block in yaml_blocks() if "kubeflow_host" in block]
    (tmp_path / "gpu-pipelines.yaml").write_text(settings)
    found = load_project_settings(directory=tmp_path)
    assert found.volume_claim == "gpu-pipelines"
    assert found.kubeflow_host == "http://localhost:8080"

"""The manifests in docs/kubeflow.md are what Kubernetes and Kubeflow Trainer take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from kubeflow_trainer_api import models
from kubernetes_api.train_jobs import lost
from kubernetes_api.types import problems_of

from gpu_pipelines.project_settings import load_project_settings

PAGE = Path(__file__).parents[2] / "docs" / "kubeflow.md"


def blocks() -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def manifests() -> dict[str, dict[str, Any]]:
    """The manifests of the page by kind."""
    documents = [document for block in blocks() for document in yaml.safe_load_all(block)]
    return {document["kind"]: document for document in documents if "kind" in document}


def test_the_roles_are_of_the_types_of_kubernetes() -> None:
    found = manifests()
    for kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"):
        assert problems_of(f"V1{kind}", found[kind]) == []
    for binding, role in (("RoleBinding", "Role"), ("ClusterRoleBinding", "ClusterRole")):
        assert found[binding]["roleRef"]["name"] == found[role]["metadata"]["name"]


def test_the_runtime_is_one_of_kubeflow_trainer() -> None:
    runtime = manifests()["ClusterTrainingRuntime"]
    read = models.TrainerV1alpha1ClusterTrainingRuntime.from_dict(runtime)
    assert read is not None
    # A number or a text, which the models keep in a form of their own.
    assert lost(runtime, read.to_dict(), "runtime") == ["runtime.spec.mlPolicy.torch.numProcPerNode"]
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    # 0 is nothing to the reader's eye, and to `lost`.
    assert job["template"]["spec"]["backoffLimit"] == 0


def test_the_settings_are_accepted(tmp_path: Path) -> None:
    (settings,) = [block for block in blocks() if "kubeflow_host" in block]
    (tmp_path / "gpu-pipelines.yaml").write_text(settings)
    found = load_project_settings(directory=tmp_path)
    assert found.volume_claim == "gpu-pipelines"
    assert found.kubeflow_host == "http://localhost:8080"

"""A step over a list of nodes: the next where GKE can make none, the TrainJob before gone first, each written down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from conftest import PIPELINE
from kubernetes_api.server import KubernetesApi
from step_on_nodes import command_of, run, spec_on, until

from gpu_pipelines.accelerators import plan
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.kubeflow.in_cluster.node_choices import choice_of, with_choices
from gpu_pipelines.targets.kubeflow.placement.pods import pod_needs
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import TrainJobSpec

OUT = "Node scale up in zones us-central1-a associated with this pod failed: GCE out of resources. Pod is at risk."
QUOTA = "Node scale up in zones us-central1-a associated with this pod failed: GCE quota exceeded. Pod is at risk."


def listed(claim: Path) -> TrainJobSpec:
    """A step on one L4 of Spot, else on one on demand, else on a T4."""
    found = []
    for spec, strategy in (("l4:1", "spot"), ("l4:1", "standard"), ("t4:1", "standard")):
        planned = plan(spec, strategy=strategy, region="us-central1")
        environment = {"GPU_PIPELINES_ACCELERATOR": spec}
        made = replace(spec_on(claim), nodes=1, needs=pod_needs(planned, ProjectSettings()), environment=environment)
        found.append((planned, made))
    return with_choices(found[0][1], [choice_of(*each) for each in found], None)


def tries(claim: Path) -> list[dict[str, Any]]:
    (file,) = (claim / "fallback" / "run-1").iterdir()
    return list(json.loads(file.read_text())["tries"])


def test_the_next_nodes_are_tried_where_there_are_none(
    kubernetes_api: KubernetesApi, claim: Path, tmp_path: Path
) -> None:
    kubernetes_api.scarce = {"nvidia-l4 spot": OUT, "nvidia-l4 standard": QUOTA}
    finished = run(kubernetes_api, listed(claim), command_of(tmp_path, f"{claim}/checkpoints/x"))
    assert finished.status == 0, finished.out + finished.err
    made = tries(claim)
    assert [(each["told"], each["state"]) for each in made] == [
        ("l4:1 spot in us-central1", "no capacity"),
        ("l4:1 standard in us-central1", "no quota"),
        ("t4:1 standard in us-central1", "succeeded"),
    ]
    assert made[0]["reason"] == OUT
    assert [each["usd"] is None or each["usd"] == 0 for each in made] == [True, True, False]
    environments = [
        {each["name"]: each.get("value") for each in job.pod["spec"]["containers"][0]["env"]}
        for job in kubernetes_api.created
    ]
    assert [each["GPU_PIPELINES_ACCELERATOR"] for each in environments] == ["l4:1", "l4:1", "t4:1"]
    assert "no quota: Node scale up" in environments[2]["GPU_PIPELINES_TRIES"]
    until(lambda: not kubernetes_api.jobs)


def test_a_step_for_which_there_are_no_nodes_is_refused_with_what_was_tried(
    kubernetes_api: KubernetesApi, claim: Path, tmp_path: Path
) -> None:
    kubernetes_api.scarce = dict.fromkeys(("nvidia-l4 spot", "nvidia-l4 standard", "nvidia-tesla-t4 standard"), OUT)
    finished = run(kubernetes_api, listed(claim), command_of(tmp_path, f"{claim}/checkpoints/x"))
    assert finished.status == 1
    assert "error: None of the 3 choices was available. Tried: l4:1 spot in us-central1: no capacity" in finished.err
    until(lambda: not kubernetes_api.jobs)


def test_a_file_for_kubeflow_has_its_choices_and_a_cluster_is_in_one_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("compile", PIPELINE, "--target", "kubeflow", "--accelerator", "l4:2,l4:1", "--strategy", "spot,standard")
    done = command(*given, "--image", "us-docker.pkg.dev/p/r/steps:1", "--region", "us-central1", "-o", "p.yaml")
    assert done.status == 0, done.err
    text = (tmp_path / "p.yaml").read_text()
    assert text.count("l4:2 standard in us-central1") == 1
    refused = command(*given, "--regions", "us-central1,europe-west4", "-o", "p.yaml")
    assert refused.status == 2
    assert "A cluster is in one region; --regions names europe-west4, us-central1." in refused.err

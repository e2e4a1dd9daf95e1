"""A pipeline as the YAML file that Kubeflow Pipelines takes: the pipeline, and what is for Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compiled import compiled
from gpu_pipelines.targets.kubeflow.target import KubeflowTarget


def compiled_for_kubeflow(
    name: str,
    plan: AcceleratorPlan,
    settings: ProjectSettings | None = None,
    environment: Mapping[str, str] | None = None,
    evaluation: AcceleratorPlan | None = None,
    *,
    task: str = "",
) -> str:
    """The text of the file of a pipeline: two YAML documents.

    Args:
        name: name of the pipeline, as on the command line.
        plan: what it trains on.
        settings: image, claim or bucket, node pool, pull secret, queue, service account.
        environment: variables of the steps.
        evaluation: what it evaluates on; left out, one GPU of the training's kind, or one of its machines.
        task: the one that the file is for; empty where that is a parameter.

    Raises:
        UserError: there is no such pipeline, or GKE has no such nodes.
    """
    from gpu_pipelines.dag import load_pipeline

    target = KubeflowTarget(settings, environment)
    return compiled(load_pipeline(name).build(target, plan, evaluation, task=task))

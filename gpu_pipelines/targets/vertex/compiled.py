"""A pipeline as the YAML file that Vertex AI Pipelines takes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan, load_catalog
from gpu_pipelines.accelerators.catalog import CatalogError
from gpu_pipelines.accelerators.one_gpu import evaluation_plan
from gpu_pipelines.accelerators.request import PlanRequest
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compiled import compiled, documents_of
from gpu_pipelines.targets.vertex.data_nodes import DataNodes
from gpu_pipelines.targets.vertex.job_spec import JobOptions, require_job
from gpu_pipelines.targets.vertex.target import VertexTarget
from gpu_pipelines.tasks.model_sizes import LARGEST_BUILT_IN

#: What a CustomJob's task runs: it creates the job, waits for it, and does no work of its own.
_LAUNCHER = "google_cloud_pipeline_components.container.v1.custom_job.launcher"
#: What a file is called after its GPU: see `file_of`.
_PUBLISHED = re.compile(r"(?P<count>[0-9]+)(-(?P<nodes>[0-9]+)-nodes)?(-(?P<strategy>[a-z-]+))?")


def published(most_used: bool = False) -> tuple[PlanRequest, ...]:
    """The accelerators that compiled files are published for, as the rows of the GPUs in the catalog have them.

    Args:
        most_used: only those that are used most; for others a file is compiled when it is needed.

    Raises:
        CatalogError: a row has something else there.
    """
    found = []
    for gpu in load_catalog().gpus.values():
        for name in gpu.most_used if most_used else gpu.compiled:
            match = _PUBLISHED.fullmatch(name)
            if match is None:
                raise CatalogError(f"{gpu.name} is to be compiled for {name!r}.", "Write 8, 8-4-nodes or 2-spot.")
            nodes, strategy = int(match["nodes"] or 1), match["strategy"]
            found.append(PlanRequest(f"{gpu.name}:{match['count']}", nodes=nodes, strategy=strategy))
    return tuple(found)


def compiled_for_vertex(
    name: str,
    plan: AcceleratorPlan,
    settings: ProjectSettings | None = None,
    options: JobOptions | None = None,
    data: DataNodes | None = None,
    evaluation: AcceleratorPlan | None = None,
    *,
    task: str = "",
) -> str:
    """The text of the file of a pipeline.

    Args:
        name: name of the pipeline, as on the command line.
        plan: what it trains on.
        settings: image, service account, network, key, TensorBoard and labels of the steps.
        options: disk, waiting, reduction servers and variables of the jobs.
        data: the machines of data preparation; left out, one of the service's choice.
        evaluation: what it evaluates on; left out, what `evaluation_plan` chooses for the models that the project
            builds by their names.
        task: the one that the file is for; empty where that is a parameter.

    Raises:
        UserError: there is no such pipeline, or it cannot run on Vertex AI so.
    """
    from gpu_pipelines.dag import load_pipeline

    settings, options = settings or ProjectSettings(), options or JobOptions()
    module = load_pipeline(name)
    require_job(plan, settings, options)
    if evaluation is None:
        # The default of the parameter `model` is such a one.
        evaluation = evaluation_for(plan, settings, LARGEST_BUILT_IN)
    text = compiled(module.build(VertexTarget(settings, options, data), plan, evaluation, task=task))
    require_runnable(text)
    return text


def evaluation_for(plan: AcceleratorPlan, settings: ProjectSettings, parameters: float | None) -> AcceleratorPlan:
    """What a pipeline evaluates on by default: `evaluation_plan`, or one node of the plan on a persistent resource.

    Args:
        plan: what it trains on.
        settings: the persistent resource, whose machines are paid for.
        parameters: of the model; None where its size is not known.
    """
    return replace(plan, nodes=1) if settings.persistent_resource else evaluation_plan(plan, parameters)


def file_of(plan: AcceleratorPlan) -> str:
    """Name of the file of a plan, such as `h100-8-4-nodes.yaml` or `h100-2-spot.yaml`."""
    parts = [plan.spec.replace(":", "-")]
    if plan.nodes > 1:
        parts.append(f"{plan.nodes}-nodes")
    if plan.strategy != "standard":
        parts.append(plan.strategy)
    return f"{'-'.join(parts)}.yaml"


def require_runnable(text: str) -> None:
    """Checks what Vertex AI refuses, or takes and does something else with.

    Raises:
        UserError: the file has several documents, or a CustomJob's task has CPUs, memory or GPUs of its own.
    """
    documents: list[dict[str, Any]] = documents_of(text)
    if len(documents) != 1:
        raise UserError(
            f"The compiled pipeline has {len(documents)} YAML documents; Vertex AI takes one.",
            "Leave out what is for Kubernetes, such as secrets, volumes and node selectors.",
        )
    for label, executor in documents[0]["deploymentSpec"]["executors"].items():
        container = executor.get("container", {})
        if _LAUNCHER in container.get("command", []) and container.get("resources"):
            raise UserError(
                f"The step {label.removeprefix('exec-')} sets CPUs, memory or GPUs, but is a CustomJob: they would be "
                "those of the small container that starts the job.",
                "Leave it out; the machine is chosen by the accelerator and --machine-type.",
            )

"""The machines of a run on Kubeflow, and their times: the nodes of its pods, while these ran.

The cost of a node before and after its pods belongs to the cluster: it depends on how the pool grows and shrinks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from gpu_pipelines.accelerators.catalog import load_catalog
from gpu_pipelines.accelerators.catalog.records import MachineType
from gpu_pipelines.accelerators.spent import MachineTime
from gpu_pipelines.targets.kubeflow.placement.pods import (
    ACCELERATOR_LABEL,
    FLEX_START_LABEL,
    SPOT_LABEL,
    PodNeeds,
    usable_cpus,
    usable_memory_gib,
)
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import SPEC_ARGUMENT, TrainJobSpec
from gpu_pipelines.targets.kubeflow.runs.failure import pods_of_steps
from gpu_pipelines.targets.spec_steps import tasks_in

#: The message if nothing has a price.
NO_PRICES = "The region of the cluster is not known: give --region to see prices."
#: Costs that the figures of Kubeflow do not include.
NOT_COUNTED = (
    "the nodes while no pod of the run is on them",
    "nodes without GPUs, which other pods are on as well",
    "the fee for the cluster",
    "boot disks, network traffic and storage",
    "discounts for sustained or committed use",
)


@dataclass(frozen=True)
class Nodes:
    """The nodes of a step.

    Attributes:
        nodes: number of nodes.
        machine: their type; empty if no machine of the catalog is meant.
        gpu: name of the GPU; empty for none.
        gpus: of each node.
        strategy: the way to buy them.
    """

    nodes: int
    machine: str
    gpu: str
    gpus: int
    strategy: str


def times_of_run(
    client: Any, run_id: str, spec: Mapping[str, Any], seconds: Mapping[str, float], region: str
) -> list[MachineTime]:
    """The machines of a run, separately for each pod of a step: a step that was tried again has several.

    Args:
        client: a client of `connect`.
        run_id: id of the run.
        spec: its pipeline, with settings for Kubernetes if there are any.
        seconds: time that each step ran, by its name; used if the workflow may not be read.
        region: region of the cluster; empty if it is not known.
    """
    nodes = nodes_of(spec)
    pods = pods_of_steps(client, run_id)
    found = []
    for step, ran in seconds.items():
        tries = [_seconds(pod) for pod in pods.get(step, [])] or [ran]
        where = nodes.get(step, Nodes(1, "", "", 0, "standard"))
        if not where.gpus:
            continue
        for number, each in enumerate(tries, 1):
            name = f"try {number}" if len(tries) > 1 else ""
            given = (step, name, where.machine, where.gpu, where.gpus, where.nodes)
            found.append(MachineTime(*given, each, where.strategy, region or "a region that is not known"))
    return found


def nodes_of(spec: Mapping[str, Any]) -> dict[str, Nodes]:
    """The nodes that the steps of a run request, by step.

    Args:
        spec: the pipeline of a run, with settings for Kubernetes if there are any.
    """
    pipeline, platform = spec.get("pipeline_spec", spec), spec.get("platform_spec", {})
    executors = pipeline.get("deploymentSpec", {}).get("executors", {})
    placed = platform.get("platforms", {}).get("kubernetes", {}).get("deploymentSpec", {}).get("executors", {})
    found = {}
    for step, executor in _steps(pipeline):
        container = executors.get(executor, {}).get("container", {})
        arguments = container.get("args", [])
        if arguments[:1] == [SPEC_ARGUMENT]:
            job = TrainJobSpec.loads(arguments[1])
            found[step] = _of_needs(job.needs, job.nodes)
            continue
        resources = container.get("resources", {})
        gpus = int(resources.get("accelerator", {}).get("resourceCount") or 0)
        labels = placed.get(executor, {}).get("nodeSelector", {}).get("labels", {})
        memory = str(resources.get("resourceMemoryRequest") or "").removesuffix("Gi")
        cpus = str(resources.get("resourceCpuRequest") or "")
        if memory.isdigit() and cpus.isdigit():
            found[step] = _of_needs(PodNeeds(int(cpus), int(memory), gpus, node_selector=labels), 1)
    return found


def _steps(pipeline: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The tasks of a pipeline with their executors."""
    components = pipeline.get("components", {})
    for task, placed in tasks_in(pipeline):
        component = components.get(placed["componentRef"]["name"], {})
        if "executorLabel" in component:
            yield task, str(component["executorLabel"])


def _of_needs(needs: PodNeeds, nodes: int) -> Nodes:
    selector = needs.node_selector
    strategy = "spot" if SPOT_LABEL in selector else "flex-start" if FLEX_START_LABEL in selector else "standard"
    gpu = next((g for g in load_catalog().gpus.values() if g.gke_label == selector.get(ACCELERATOR_LABEL)), None)
    if gpu is None or not needs.gpus:
        return Nodes(nodes, "", "", needs.gpus, strategy)
    fitting = [machine for machine in load_catalog().machines_with(gpu.name, needs.gpus) if _is_for(machine, needs)]
    return Nodes(nodes, fitting[0].name if fitting else "", gpu.name, needs.gpus, strategy)


def _is_for(machine: MachineType, needs: PodNeeds) -> bool:
    """Whether a pod with these needs was placed for that machine: it requests what GKE leaves of the machine."""
    wanted = usable_cpus(machine.vcpus), usable_memory_gib(float(machine.memory_gb))
    return wanted == (needs.cpus, needs.memory_gib)


def _seconds(pod: Mapping[str, Any]) -> float:
    """The seconds that a pod ran, by Argo's record."""
    began, ended = (_time(pod.get(name)) for name in ("startedAt", "finishedAt"))
    if began is None:
        return 0.0
    return max(0.0, ((ended or datetime.now(timezone.utc)) - began).total_seconds())


def _time(text: Any) -> datetime | None:
    return datetime.fromisoformat(str(text).replace("Z", "+00:00")) if text else None

"""What a pod of GKE needs for an accelerator plan: GPUs, CPUs, memory, shared memory, and the nodes it may run on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings

#: Name of the GPUs as a resource, and of the taint that GKE gives nodes with GPUs.
GPU_RESOURCE = "nvidia.com/gpu"
#: Labels of GKE's nodes. https://cloud.google.com/kubernetes-engine/docs/how-to/gpus, …/concepts/spot-vms,
#: …/concepts/dws (Flex-start).
ACCELERATOR_LABEL = "cloud.google.com/gke-accelerator"
SPOT_LABEL = "cloud.google.com/gke-spot"
FLEX_START_LABEL = "cloud.google.com/gke-flex-start"
#: Taint of the nodes of a pool with queued provisioning:
#: https://cloud.google.com/kubernetes-engine/docs/how-to/provisioningrequest.
QUEUED_TAINT = "cloud.google.com/gke-queued"
NODE_POOL_LABEL = "cloud.google.com/gke-nodepool"
ARCHITECTURE_TAINT = "kubernetes.io/arch"
#: Labels that Kueue reads: https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

#: Memory of a node that GKE keeps: pairs of a limit in GiB and the share up to it; above the last limit 2 %. GKE also
#: evicts pods when less than 0.1 GiB is free. https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes
_MEMORY_KEPT = ((4, 0.25), (8, 0.20), (16, 0.10), (128, 0.06), (math.inf, 0.02))
_EVICTION_GIB = 0.1
#: The same for CPUs; above the fourth 0.25 %.
_CPUS_KEPT = ((1, 0.06), (2, 0.01), (4, 0.005), (math.inf, 0.0025))
#: Also left to the kernel, whose memory does not count as the node's, and to the pods that each node has: GKE's own
#: (logging, metrics, network, GPU driver) and KFP's helper container beside a step. Not a figure of GKE's.
_KERNEL_SHARE, _OTHER_PODS_GIB, _OTHER_PODS_CPUS = 0.02, 1.0, 0.5
#: Share of a pod's memory that may be shared memory (/dev/shm), as is Linux's default.
_SHARED_MEMORY = 0.5


@dataclass(frozen=True)
class Toleration:
    """A taint of nodes that does not keep a pod away.

    Attributes:
        key: key of the taint.
        value: its value; empty for any.
    """

    key: str
    value: str = ""

    def to_json(self) -> dict[str, str]:
        """The toleration in Kubernetes's form."""
        value = {"operator": "Equal", "value": self.value} if self.value else {"operator": "Exists"}
        return {"key": self.key, **value, "effect": "NoSchedule"}


@dataclass(frozen=True)
class PodNeeds:
    """The resources and nodes that one pod requests.

    Attributes:
        cpus: CPUs.
        memory_gib: memory, GiB.
        gpus: GPUs.
        shared_memory_gib: largest size of /dev/shm, GiB, part of the memory; 0 for the container's own 64 MB.
        node_selector: labels that its node must have.
        tolerations: taints that its node may have.
    """

    cpus: int
    memory_gib: int
    gpus: int = 0
    shared_memory_gib: int = 0
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Toleration] = ()


def pod_needs(plan: AcceleratorPlan, settings: ProjectSettings) -> PodNeeds:
    """The needs of the pod on each node of a plan: its GPUs, and what GKE leaves of the rest of the machine.

    Args:
        plan: its machines.
        settings: node pool.

    Raises:
        UserError: lists why GKE has no such node.
    """
    gpu, machine = plan.gpu, plan.machine
    if gpu is None or machine is None:
        raise UserError(f"{plan.spec} is for this machine; Kubeflow has no such node.", "Choose a GPU, such as l4:1.")
    problems = []
    if plan.partition:
        problems.append(f"{plan.spec} is a partition of a GPU, which jobs of Vertex AI can have, and pods here cannot.")
    if not gpu.gke_label:
        problems.append(f"GKE has no {gpu.name}.")
    if plan.strategy == "reservation" and not settings.node_pool:
        problems.append("On GKE a reservation belongs to a node pool. Write node_pool into gpu-pipelines.yaml.")
    if problems:
        raise UserError.of_all(problems)
    selector = {ACCELERATOR_LABEL: str(gpu.gke_label)}
    tolerations = [Toleration(GPU_RESOURCE)]
    if plan.strategy == "spot":
        selector[SPOT_LABEL] = "true"
        tolerations.append(Toleration(SPOT_LABEL, "true"))
    elif plan.strategy == "flex-start":
        selector[FLEX_START_LABEL] = "true"
        tolerations.append(Toleration(QUEUED_TAINT, "true"))
    if machine.host_architecture == "arm64":
        tolerations.append(Toleration(ARCHITECTURE_TAINT, machine.host_architecture))
    if settings.node_pool:
        selector[NODE_POOL_LABEL] = settings.node_pool
    memory = usable_memory_gib(float(machine.memory_gb))
    return PodNeeds(
        cpus=usable_cpus(machine.vcpus),
        memory_gib=memory,
        gpus=plan.count,
        shared_memory_gib=max(1, int(memory * _SHARED_MEMORY)),
        node_selector=selector,
        tolerations=tolerations,
    )


def usable_memory_gib(machine_gib: float) -> int:
    """Memory that a pod can request on a machine whose other pods are the node's own, whole GiB.

    Args:
        machine_gib: memory of the machine; Compute Engine's GB are GiB.
    """
    kept = _kept(machine_gib, _MEMORY_KEPT) + _EVICTION_GIB + machine_gib * _KERNEL_SHARE
    return max(1, math.floor(machine_gib - kept - _OTHER_PODS_GIB))


def usable_cpus(vcpus: int) -> int:
    """CPUs that a pod can request on a machine whose other pods are the node's own."""
    return max(1, math.floor(vcpus - _kept(vcpus, _CPUS_KEPT) - _OTHER_PODS_CPUS))


def _kept(total: float, shares: Sequence[tuple[float, float]]) -> float:
    kept, below = 0.0, 0.0
    for limit, share in shares:
        kept += max(0.0, min(total, limit) - below) * share
        below = limit
    return kept

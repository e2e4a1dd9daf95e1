"""The networks by which GPUs of several nodes reach each other on GKE, and the training runtimes that set them up.

Machines with networks of their own for GPUs need more than labels: further interfaces in the pod, a helper beside the
training, libraries of the node, settings of NCCL. Manifests of the runtimes: docs/kubeflow-runtimes/, after those of
https://github.com/GoogleCloudPlatform/container-engine-accelerators (gpudirect-tcpx, gpudirect-tcpxo, gpudirect-rdma).
Without them NCCL would take the ordinary network, and say so nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.kubeflow.train_job_spec import DEFAULT_RUNTIME


@dataclass(frozen=True)
class GpuNetwork:
    """A network for the GPUs of several nodes.

    Attributes:
        name: what it is called.
        runtime: the training runtime of docs/kubeflow-runtimes/ that sets it up; empty where there is none.
    """

    name: str
    runtime: str


_TCPX = GpuNetwork("GPUDirect-TCPX", "gpu-pipelines-tcpx")
_TCPXO = GpuNetwork("GPUDirect-TCPXO", "gpu-pipelines-tcpxo")
_RDMA = GpuNetwork("GPUDirect-RDMA", "gpu-pipelines-rdma")
_NETWORKS = {
    "a3-highgpu-8g": _TCPX,
    "a3-edgegpu-8g": _TCPX,
    "a3-megagpu-8g": _TCPXO,
    "a3-ultragpu-8g": _RDMA,
    "a4-highgpu-8g": _RDMA,
    # Its nodes share NVLink as well, by ComputeDomains of NVIDIA's DRA driver.
    "a4x-highgpu-4g": GpuNetwork("GPUDirect-RDMA with multi-node NVLink", ""),
}


def runtime_for(plan: AcceleratorPlan, chosen: str | None) -> str:
    """The training runtime that the nodes of a plan start from.

    Args:
        plan: machine and number of nodes.
        chosen: the one of the settings (`kubeflow_runtime`); None if there is none.

    Raises:
        UserError: the GPUs of the machine have a network that the runtime does not set up.
    """
    network = _NETWORKS.get(str(plan.machine_type)) if plan.nodes > 1 else None
    if network is None:
        return chosen or DEFAULT_RUNTIME
    if not (chosen or network.runtime):
        raise UserError(
            f"{plan.nodes} nodes of {plan.machine_type} talk by {network.name}, for which there is no runtime here.",
            "Make one after GKE's guide and give it as kubeflow_runtime, or take other GPUs: docs/kubeflow.md.",
        )
    if chosen == DEFAULT_RUNTIME:
        instead = f"take {network.runtime} by leaving kubeflow_runtime out, or " if network.runtime else ""
        raise UserError(
            f"The runtime {chosen} has no {network.name}: {plan.nodes} nodes of {plan.machine_type} would talk over "
            "the ordinary network.",
            f"Instead {instead}give a runtime of your own that has it: docs/kubeflow.md.",
        )
    return chosen or network.runtime

"""The networks by which GPUs of several nodes reach each other on GKE, and the training runtimes that set them up.

Machines with networks of their own for GPUs need more than labels: further interfaces in the pod, a helper beside the
training, libraries of the node, settings of NCCL. Manifests of the runtimes: docs/kubeflow-runtimes/, after those of
https://github.com/GoogleCloudPlatform/container-engine-accelerators (gpudirect-tcpx, gpudirect-tcpxo, gpudirect-rdma).
Without them NCCL would take the ordinary network, and say so nowhere.
"""

from __future__ import annotations

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.kubeflow.train_job_spec import DEFAULT_RUNTIME

#: The training runtime of docs/kubeflow-runtimes/ that sets up a network, by the network's name in the catalog. There
#: is none for machines whose nodes share NVLink as well, by ComputeDomains of NVIDIA's DRA driver.
RUNTIMES = {
    "GPUDirect-TCPX": "gpu-pipelines-tcpx",
    "GPUDirect-TCPXO": "gpu-pipelines-tcpxo",
    "GPUDirect-RDMA": "gpu-pipelines-rdma",
}


def runtime_for(plan: AcceleratorPlan, chosen: str | None) -> str:
    """The training runtime that the nodes of a plan start from.

    Args:
        plan: machine and number of nodes.
        chosen: the one of the settings (`kubeflow_runtime`); None if there is none.

    Raises:
        UserError: the GPUs of the machine have a network that the runtime does not set up.
    """
    network = plan.machine.gpudirect if plan.machine and plan.nodes > 1 else ""
    if not network:
        return chosen or DEFAULT_RUNTIME
    runtime = RUNTIMES.get(network, "")
    if not (chosen or runtime):
        raise UserError(
            f"{plan.nodes} nodes of {plan.machine_type} talk by {network}, for which there is no runtime here.",
            "Make one after GKE's guide and give it as kubeflow_runtime, or take other GPUs: docs/kubeflow.md.",
        )
    if chosen == DEFAULT_RUNTIME:
        instead = f"take {runtime} by leaving kubeflow_runtime out, or " if runtime else ""
        raise UserError(
            f"The runtime {chosen} has no {network}: {plan.nodes} nodes of {plan.machine_type} would talk over "
            "the ordinary network.",
            f"Instead {instead}give a runtime of your own that has it: docs/kubeflow.md.",
        )
    return chosen or runtime

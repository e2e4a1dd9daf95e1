"""How a compiled file describes a step that runs as a TrainJob; the step's pod makes the TrainJob from it.

The training runtime of a TrainJob sets up the network between the GPUs of several nodes. Machines with networks of
their own for GPUs need more than labels: further interfaces in the pod, a helper beside the training, libraries of the
node, settings of NCCL. Manifests of the runtimes: docs/kubeflow-runtimes/, after those of
https://github.com/GoogleCloudPlatform/container-engine-accelerators (gpudirect-tcpx, gpudirect-tcpxo, gpudirect-rdma).
Without them NCCL would silently use the ordinary network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.kubeflow.placement.pods import PodNeeds, Toleration

#: Kubeflow Trainer's own runtime for torchrun's variables.
DEFAULT_RUNTIME = "torch-distributed"
#: The training runtime of docs/kubeflow-runtimes/ that sets up a network, by the network's name in the catalog. There
#: is none for machines whose nodes share NVLink as well, by ComputeDomains of NVIDIA's DRA driver.
RUNTIMES = {
    "GPUDirect-TCPX": "gpu-pipelines-tcpx",
    "GPUDirect-TCPXO": "gpu-pipelines-tcpxo",
    "GPUDirect-RDMA": "gpu-pipelines-rdma",
}
#: The option with the specification of a step that is a TrainJob.
SPEC_ARGUMENT = "--train-job"
#: Variables that Trainer sets, and refuses in a TrainJob (`TorchRunReservedEnvNames`).
_TRAINERS = {f"PET_{name}" for name in ("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")}
#: The default time limit of a TrainJob: that of a custom job of Vertex AI.
DEFAULT_HOURS = 168.0


@dataclass(frozen=True)
class TrainJobSpec:
    """The specification of a TrainJob, besides the command.

    Attributes:
        step: name of its step.
        image: image of the nodes.
        nodes: number of nodes.
        needs: needs of each.
        storage: gs://… or a mounted directory, which all nodes and the step share.
        runtime: its training runtime.
        volume_claim: PersistentVolumeClaim that is mounted in each node; empty for none.
        mount_path: place of the mount.
        pull_secret: secret with which the image is pulled; empty for none.
        queue: queue of Kueue that it waits in; empty for none.
        service_account: Kubernetes service account of the nodes; empty for the namespace's default.
        environment: variables of the nodes.
        secrets: variables whose values are in Kubernetes secrets, each as SECRET/KEY.
        hours: the longest that it may run.
        restarts: most times to create it again after an interruption from which it can continue.
        is_elastic: whether nodes may come late, leave and come back, so that it is done when rank 0 is.
        choices: choices to try in order, the first being this one; empty for only this one.
        max_price: most that all tries together may cost, USD; None for no limit.
    """

    step: str
    image: str
    nodes: int
    needs: PodNeeds
    storage: str
    runtime: str = DEFAULT_RUNTIME
    volume_claim: str = ""
    mount_path: str = ""
    pull_secret: str = ""
    queue: str = ""
    service_account: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    hours: float = DEFAULT_HOURS
    restarts: int = 0
    is_elastic: bool = False
    choices: tuple[Mapping[str, Any], ...] = ()
    max_price: float | None = None

    def content(self) -> dict[str, Any]:
        """The specification as JSON, without newer fields that are not used."""
        newer = {"is_elastic": False, "choices": (), "max_price": None}
        return {name: value for name, value in asdict(self).items() if name not in newer or value != newer[name]}

    def dumps(self) -> str:
        """The specification as a line of JSON."""
        return json.dumps(self.content(), sort_keys=True)

    @classmethod
    def loads(cls, text: str) -> TrainJobSpec:
        """Reads what `dumps` wrote."""
        return cls.of(json.loads(text))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> TrainJobSpec:
        """The specification in a JSON object."""
        content = {**content, "choices": tuple(content.get("choices", ()))}
        needs = dict(content.pop("needs"))
        tolerations = tuple(Toleration(**each) for each in needs.pop("tolerations"))
        return cls(needs=PodNeeds(**needs, tolerations=tolerations), **content)


@dataclass(frozen=True)
class JobRequest:
    """A job to create: a TrainJob, a RayJob, or an Experiment of TrainJobs.

    Attributes:
        name: its name.
        spec: its specification.
        command: command of its nodes; for a RayJob only of the head.
        labels: labels to find it, and its pods.
        owner: reference to the object with which Kubernetes deletes it; None for none.
    """

    name: str
    spec: TrainJobSpec
    command: Sequence[str]
    labels: Mapping[str, str]
    owner: Mapping[str, Any] | None = None


def require_no_trainers(variables: Set[str]) -> None:
    """Checks that Kubeflow Trainer sets none of some variables.

    Raises:
        UserError: it sets one.
    """
    if taken := sorted(variables & _TRAINERS):
        raise UserError(
            f"Kubeflow Trainer sets {', '.join(taken)} itself, and refuses a TrainJob that does.",
            "Leave it out of --env, of secret_env and of the task; --nodes says how many nodes there are.",
        )


def runtime_for(plan: AcceleratorPlan, chosen: str | None) -> str:
    """The training runtime for the nodes of a plan.

    Args:
        plan: machine and number of nodes.
        chosen: the runtime of the settings (`kubeflow_runtime`); None if there is none.

    Raises:
        UserError: the GPUs of the machine have a network that the runtime does not set up.
    """
    network = plan.machine.gpudirect if plan.machine and plan.nodes > 1 else ""
    if not network:
        return chosen or DEFAULT_RUNTIME
    runtime = RUNTIMES.get(network, "")
    if not (chosen or runtime):
        raise UserError(
            f"{plan.nodes} nodes of {plan.machine_type} use {network}, and there is no runtime for it here.",
            "Make one after GKE's guide and give it as kubeflow_runtime, or use other GPUs: docs/kubeflow.md.",
        )
    if chosen == DEFAULT_RUNTIME:
        instead = f"take {runtime} by leaving kubeflow_runtime out, or " if runtime else ""
        raise UserError(
            f"The runtime {chosen} has no {network}: {plan.nodes} nodes of {plan.machine_type} would use "
            "the ordinary network.",
            f"Instead {instead}give a runtime of your own that has it: docs/kubeflow.md.",
        )
    return chosen or runtime

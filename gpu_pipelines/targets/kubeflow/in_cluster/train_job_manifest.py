"""The manifest of a TrainJob; Kubeflow's SDK has no option for its owner, or for variables from secrets.

Types: TrainJob of trainer.kubeflow.org/v1alpha1 (`kubeflow-trainer-api`). Trainer refuses variables of the container
`node` in a runtime patch, so all of them are below `trainer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_pipelines.targets.kubeflow.placement.pods import GPU_RESOURCE, QUEUE_LABEL
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import JobRequest, TrainJobSpec

#: Names of a node's container, and of the job that creates the nodes, in Trainer's runtimes.
NODE = "node"
#: Labels to find the TrainJobs of a step: the run, as Kubeflow Pipelines labels its pods, and the step.
RUN_LABEL, STEP_LABEL = "pipeline/runid", "app.kubernetes.io/instance"
_LONGEST_LABEL = 63
#: The manager of these fields of the runtime, for the record.
_MANAGER = "gpu-pipelines/kubeflow"
#: The user of the steps' image, whose group gets the files of a claim if the claim's driver supports that.
IMAGE_USER = 10001


def manifest_of(job: JobRequest, runtime_kind: str) -> dict[str, Any]:
    """A TrainJob with a runtime that is a ClusterTrainingRuntime or a TrainingRuntime."""
    spec = job.spec
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata_of(job),
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": runtime_kind, "name": spec.runtime},
            "activeDeadlineSeconds": round(spec.hours * 3600),
            "trainer": _trainer(spec, job.command),
            "runtimePatches": [{"manager": _MANAGER, "trainingRuntimeSpec": _runtime_patch(spec, job.labels)}],
        },
    }


def metadata_of(job: JobRequest) -> dict[str, Any]:
    """Name, labels and owner of a job."""
    all_labels = {
        "app.kubernetes.io/managed-by": "gpu-pipelines",
        "app.kubernetes.io/component": job.spec.step[:_LONGEST_LABEL].rstrip("-"),
        **job.labels,
        **({QUEUE_LABEL: job.spec.queue} if job.spec.queue else {}),
    }
    return {"name": job.name, "labels": all_labels, **({"ownerReferences": [dict(job.owner)]} if job.owner else {})}


def resources_of(spec: TrainJobSpec) -> dict[str, Any]:
    """The resources that a node's container requests."""
    needs = spec.needs
    amounts = {"cpu": str(needs.cpus), "memory": f"{needs.memory_gib}Gi"}
    if needs.gpus:
        amounts[GPU_RESOURCE] = str(needs.gpus)
    return {"limits": dict(amounts), "requests": dict(amounts)}


def variables_of(spec: TrainJobSpec) -> list[dict[str, Any]]:
    """The variables of the container of a node."""
    plain = [{"name": name, "value": value} for name, value in spec.environment.items()]
    secret = [
        {"name": name, "valueFrom": {"secretKeyRef": dict(zip(("name", "key"), place.split("/", 1), strict=True))}}
        for name, place in spec.secrets.items()
    ]
    return [*plain, *secret]


def _trainer(spec: TrainJobSpec, command: Sequence[str]) -> dict[str, Any]:
    return {
        "image": spec.image,
        "command": list(command),
        "numNodes": spec.nodes,
        "resourcesPerNode": resources_of(spec),
        "env": variables_of(spec),
    }


def pod_of(spec: TrainJobSpec) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A node's pod without its container, and the container's mounts: nodes, shared memory, claim and pull secret."""
    needs = spec.needs
    shared = {"medium": "Memory", "sizeLimit": f"{needs.shared_memory_gib}Gi"}
    volumes: list[dict[str, Any]] = [{"name": "shared-memory", "emptyDir": shared}]
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]  # noqa: S108 (shared memory is there)
    pod: dict[str, Any] = {
        "nodeSelector": dict(needs.node_selector),
        "tolerations": [toleration.to_json() for toleration in needs.tolerations],
    }
    if spec.volume_claim:
        volumes.append({"name": "claim", "persistentVolumeClaim": {"claimName": spec.volume_claim}})
        mounts.append({"name": "claim", "mountPath": spec.mount_path})
        pod["securityContext"] = {"fsGroup": IMAGE_USER, "fsGroupChangePolicy": "OnRootMismatch"}
    if spec.service_account:
        pod["serviceAccountName"] = spec.service_account
    if spec.pull_secret:
        pod["imagePullSecrets"] = [{"name": spec.pull_secret}]
    return {**pod, "volumes": volumes}, mounts


def _runtime_patch(spec: TrainJobSpec, labels: Mapping[str, str]) -> dict[str, Any]:
    pod, mounts = pod_of(spec)
    containers = [{"name": NODE, "volumeMounts": mounts}]
    template = {"metadata": {"labels": dict(labels)}, "spec": {**pod, "containers": containers}}
    job = {"name": NODE, "template": {"spec": {"template": template}}}
    return {"template": {"spec": {"replicatedJobs": [job]}}}

"""RayJobs of KubeRay: created, looked at, read, deleted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from gpu_pipelines.errors import (
    INTERRUPTED,
    NodeLostError,
    ProcessFailedError,
    UserError,
    distance_from_cause,
    first_line,
    root_of,
)
from gpu_pipelines.targets.kubeflow.cluster_jobs import (
    OUT_OF_MEMORY,
    Failure,
    HeldUp,
    create_job,
    delete_job,
    lines_of_pod,
    memory_was_full,
    names_of_jobs,
    owner_of,
    service_errors,
)
from gpu_pipelines.targets.kubeflow.exchange import executor_input_of, with_executor_input
from gpu_pipelines.targets.kubeflow.node_choices import scheduling_of
from gpu_pipelines.targets.kubeflow.pod_starts import held_up, suspended
from gpu_pipelines.targets.kubeflow.ray_job_manifest import SUBMITTER, manifest_of
from gpu_pipelines.targets.kubeflow.train_job_spec import JobRequest

#: Group and version of its API.
RAY_API = ("ray.io", "v1")
#: Label of the pods of a Job of Kubernetes; the one that submits a RayJob has its name.
_JOB_LABEL = "batch.kubernetes.io/job-name"
#: Label of the pods of a RayCluster.
_CLUSTER_LABEL = "ray.io/cluster"
#: Label of the pod of its head, and its value.
_NODE_TYPE, _HEAD = "ray.io/node-type", "head"
#: `JobDeploymentStatus` of KubeRay, in the words of `Jobs.state`; with others it has not begun.
_STATES = {"Running": "Running", "Retrying": "Running", "Complete": "Complete", "Failed": "Failed"}
_REFUSED = "ValidationFailed"
#: Where Kueue has not let it go yet.
_SUSPENDED = "Suspended"
#: Reason of a RayJob that reached its deadline (`JobFailedReason`).
_TOO_LONG = "DeadlineExceeded"
#: What Ray says of a job whose command has ended; of one that was lost it says something else.
_EXIT_STATUS = re.compile(r"failed with exit code (-?\d+)")
#: The parameter of the step that gets the cluster, which is that of the head where it runs.
_ADDRESS, _OF_THE_HEAD = "ray_address", "auto"


class RayJobs:
    """The RayJobs of the namespace that this process or the current kubeconfig is in.

    Args:
        client: of the SDK; see `cluster_jobs.connected`.
    """

    kind = "RayJob"

    def __init__(self, client: Any) -> None:
        self._backend, self._api = client.backend, client.backend.custom_api
        self._ray_jobs = (*RAY_API, self._backend.namespace, "rayjobs")

    def create(self, job: JobRequest) -> bool:
        """See `Jobs`; the command gets the cluster as its parameter `ray_address`."""
        document = executor_input_of(job.command)
        document.setdefault("inputs", {}).setdefault("parameterValues", {})[_ADDRESS] = _OF_THE_HEAD
        on_head = with_executor_input(job.command, document)
        # The step's pod runs the image that the nodes run.
        manifest = manifest_of(replace(job, command=on_head), ray_version=version("ray"))
        with service_errors(
            f"Creating the RayJob {job.name}",
            "Look whether KubeRay is 1.5 or newer, older ones know no tokens, and whether the step's service account "
            "may create RayJobs: docs/kubeflow.md.",
        ):
            # Without its tokens, whoever reaches the cluster could run anything on it.
            return create_job(self._api, self._ray_jobs, manifest, is_strict=True)

    def find(self, labels: Mapping[str, str]) -> list[str]:
        """See `Jobs`."""
        return names_of_jobs(self._api, self._ray_jobs, self.kind, labels)

    def owner(self) -> dict[str, Any] | None:
        """See `owner_of`."""
        return owner_of(self._backend, self.kind)

    def state(self, name: str) -> str:
        """See `Jobs`."""
        status = self._status(name)
        deployed = status.get("jobDeploymentStatus", "")
        if deployed == _REFUSED or (deployed == "Complete" and status.get("jobStatus") != "SUCCEEDED"):
            return "Failed"
        return _STATES.get(deployed, "Created")

    def log_lines(self, name: str, node: int) -> Iterator[tuple[str, str]]:
        """The lines of the step, whichever node is asked for: the pod that submits it prints them."""
        with service_errors(f"Reading the log of {name}"):
            begun = [pod for pod in self._pods(_JOB_LABEL, name) if pod.status.phase != "Pending"]
            if not begun:
                return
            newest = max(begun, key=lambda pod: str(pod.metadata.creation_timestamp)).metadata.name
            yield from lines_of_pod(self._backend.core_api, self._backend.namespace, newest, SUBMITTER)

    def without_node(self, name: str) -> tuple[list[str], str]:
        """Of the nodes, and of the pod that submits it; see `Jobs`."""
        pods = self._nodes(self._status(name)) + self._submitters(name)
        return scheduling_of(self._backend.core_api, self._backend.namespace, pods)

    def held_up(self, name: str, nodes: int) -> HeldUp | None:
        """What keeps the nodes from starting, or else the pod that submits it; see `Jobs`."""
        status = self._status(name)
        if status.get("jobDeploymentStatus") == _SUSPENDED:
            return suspended(name)
        place = (self._backend.core_api, self._backend.namespace)
        cluster = [status["rayClusterName"]] if status.get("rayClusterName") else []
        of_nodes = held_up(*place, self._nodes(status), nodes, cluster)
        # The RayJob and the Job that submits it have one name.
        return of_nodes or held_up(*place, self._submitters(name), 1, [name])

    def is_running(self, name: str) -> bool:
        """See `Jobs`."""
        return any(pod.status.phase not in (None, "Pending") for pod in self._nodes(self._status(name)))

    def failure(self, name: str, errors: Sequence[UserError], nodes: int) -> Failure:
        """By what the step has left, by its head, and by what KubeRay and Ray say; see `Jobs`."""
        status = self._status(name)
        said = str(status.get("message", ""))
        ended = _EXIT_STATUS.search(said)
        if status.get("reason") == _TOO_LONG:
            return Failure(UserError(f"The RayJob {name} ran for longer than its limit (--hours)."), resumable=False)
        killed = [memory_was_full(pod) for pod in self._nodes(status) if _is_full_head(pod)]
        if causes := [error for error in [*errors, *killed] if not isinstance(root_of(error), NodeLostError)]:
            return Failure(min(causes, key=distance_from_cause), resumable=False)
        if _REFUSED in (status.get("reason"), status.get("jobDeploymentStatus")):
            return Failure(UserError(f"KubeRay refuses the RayJob {name}: {said}"), resumable=False)
        if ended and int(ended[1]) == INTERRUPTED:
            return Failure(UserError("the step was interrupted; what is done is kept"), resumable=True)
        if errors or not ended:
            gone = NodeLostError(f"the head of the RayJob {name} is gone: {first_line(UserError(said))}")
            return Failure(errors[0] if errors else gone, resumable=True)
        return Failure(
            ProcessFailedError(f"The RayJob {name} failed: the step exited with {ended[1]}."), resumable=False
        )

    def delete(self, name: str) -> None:
        """See `Jobs`."""
        delete_job(self._api, self._ray_jobs, self.kind, name)

    def _nodes(self, status: Mapping[str, Any]) -> list[Any]:
        """The pods of the cluster of a RayJob."""
        cluster = status.get("rayClusterName")
        with service_errors(f"Looking at the pods of {cluster}"):
            return self._pods(_CLUSTER_LABEL, cluster) if cluster else []

    def _submitters(self, name: str) -> list[Any]:
        with service_errors(f"Looking at the pods of {name}"):
            return self._pods(_JOB_LABEL, name)

    def _pods(self, label: str, value: str) -> list[Any]:
        core, namespace = self._backend.core_api, self._backend.namespace
        return list(core.list_namespaced_pod(namespace, label_selector=f"{label}={value}").items)

    def _status(self, name: str) -> dict[str, Any]:
        with service_errors(f"Looking at the RayJob {name}"):
            found = self._api.get_namespaced_custom_object(*self._ray_jobs, name)
        status: dict[str, Any] = found.get("status") or {}
        return status


def _is_full_head(pod: Any) -> bool:
    """Whether a pod is a head whose container was killed because it had used up its memory; it may run again."""
    if pod.metadata.labels.get(_NODE_TYPE) != _HEAD:
        return False
    statuses = pod.status.container_statuses or []
    states = (state for status in statuses for state in (status.state, status.last_state) if state)
    return any(state.terminated and state.terminated.reason == OUT_OF_MEMORY for state in states)

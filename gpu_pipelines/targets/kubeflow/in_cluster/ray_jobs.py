"""RayJobs of KubeRay: creating, checking, reading and deleting them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from gpu_pipelines.errors import INTERRUPTED, NodeLostError, ProcessFailedError, UserError, first_line
from gpu_pipelines.targets.kubeflow.cluster_api import service_errors
from gpu_pipelines.targets.kubeflow.in_cluster.cluster_jobs import (
    OUT_OF_MEMORY,
    SUSPENDED,
    TOO_LONG,
    Failure,
    Jobs,
    caused_by,
    memory_was_full,
)
from gpu_pipelines.targets.kubeflow.in_cluster.exchange import executor_input_of, with_executor_input
from gpu_pipelines.targets.kubeflow.in_cluster.ray_job_manifest import SUBMITTER, manifest_of
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import JobRequest
from gpu_pipelines.targets.kubeflow.pod_starts import HeldUp, scheduling_of, suspended

#: Group and version of its API.
RAY_API = ("ray.io", "v1")
#: Label of the pods of a RayCluster.
_CLUSTER_LABEL = "ray.io/cluster"
#: Label of the pod of its head, and its value.
_NODE_TYPE, _HEAD = "ray.io/node-type", "head"
#: `JobDeploymentStatus` of KubeRay, in the words of `Jobs.state`; with others it has not begun.
_STATES = {"Running": "Running", "Retrying": "Running", "Complete": "Complete", "Failed": "Failed"}
_REFUSED = "ValidationFailed"
#: Ray's message about a job whose command has ended; a lost job has another one.
_EXIT_STATUS = re.compile(r"failed with exit code (-?\d+)")
#: The parameter of the step for the cluster, with the head's own address of it.
_ADDRESS, _OF_THE_HEAD = "ray_address", "auto"


class RayJobs(Jobs):
    """RayJobs; arguments as for `ClusterObjects`. The Job of Kubernetes that submits one has the same name."""

    kind, api, pod_label = "RayJob", RAY_API, "batch.kubernetes.io/job-name"

    def create(self, job: JobRequest) -> bool:
        """See `Jobs`; the command gets the cluster as its parameter `ray_address`."""
        document = executor_input_of(job.command)
        document.setdefault("inputs", {}).setdefault("parameterValues", {})[_ADDRESS] = _OF_THE_HEAD
        on_head = with_executor_input(job.command, document)
        # The step's pod runs the same image as the nodes.
        manifest = manifest_of(replace(job, command=on_head), ray_version=version("ray"))
        with service_errors(
            f"Creating the RayJob {job.name}",
            "Check that KubeRay is 1.5 or newer, as older ones know no tokens, and that the step's service account "
            "may create RayJobs: docs/kubeflow.md.",
        ):
            # Without its tokens, anybody who reaches the cluster could run anything on it.
            return self._create(manifest, is_strict=True)

    def state(self, name: str) -> str:
        """See `Jobs`."""
        status = self._status(name)
        deployed = status.get("jobDeploymentStatus", "")
        if deployed == _REFUSED or (deployed == "Complete" and status.get("jobStatus") != "SUCCEEDED"):
            return "Failed"
        return _STATES.get(deployed, "Created")

    def log_lines(self, name: str, node: int) -> Iterator[tuple[str, str]]:
        """The lines of the step, for any node: the pod that submits it prints them."""
        with service_errors(f"Reading the log of {name}"):
            begun = [pod for pod in self._pods(name) if pod.status.phase != "Pending"]
            if not begun:
                return
            newest = max(begun, key=lambda pod: str(pod.metadata.creation_timestamp)).metadata.name
            yield from self._lines(newest, SUBMITTER)

    def without_node(self, name: str) -> tuple[list[str], str]:
        """For the nodes, and for the pod that submits it; see `ClusterObjects`."""
        pods = self._nodes(self._status(name)) + self._pods(name)
        return scheduling_of(self._core, self._namespace, pods)

    def held_up(self, name: str, nodes: int) -> HeldUp | None:
        """What keeps the nodes from starting, or else the pod that submits it; see `ClusterObjects`."""
        status = self._status(name)
        if status.get("jobDeploymentStatus") == SUSPENDED:
            return suspended(name)
        cluster = [status["rayClusterName"]] if status.get("rayClusterName") else []
        return self._held_up(self._nodes(status), nodes, cluster) or self._held_up(self._pods(name), 1, [name])

    def is_running(self, name: str) -> bool:
        """Whether one of its pods has a node; see `ClusterObjects`."""
        return any(pod.status.phase not in (None, "Pending") for pod in self._nodes(self._status(name)))

    def failure(self, name: str, errors: Sequence[UserError], nodes: int) -> Failure:
        """From the errors of the step, its head, and the messages of KubeRay and Ray; see `Jobs`."""
        status = self._status(name)
        said = str(status.get("message", ""))
        ended = _EXIT_STATUS.search(said)
        if status.get("reason") == TOO_LONG:
            return self._too_long(name)
        if failure := caused_by(
            [*errors, *(memory_was_full(pod) for pod in self._nodes(status) if _is_full_head(pod))]
        ):
            return failure
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

    def _nodes(self, status: Mapping[str, Any]) -> list[Any]:
        """The pods of the cluster of a RayJob."""
        cluster = status.get("rayClusterName")
        return self._labelled(_CLUSTER_LABEL, cluster) if cluster else []

    def _status(self, name: str) -> dict[str, Any]:
        return self._get(name).get("status") or {}


def _is_full_head(pod: Any) -> bool:
    """Whether a pod is a head whose container was killed because it had used up its memory; it may run again."""
    if pod.metadata.labels.get(_NODE_TYPE) != _HEAD:
        return False
    statuses = pod.status.container_statuses or []
    states = (state for status in statuses for state in (status.state, status.last_state) if state)
    return any(state.terminated and state.terminated.reason == OUT_OF_MEMORY for state in states)

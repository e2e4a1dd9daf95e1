"""TrainJobs of Kubeflow Trainer through its SDK: created, looked at, read, deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from gpu_pipelines.errors import (
    INTERRUPTED,
    NodeLostError,
    ProcessFailedError,
    UserError,
    distance_from_cause,
    root_of,
)
from gpu_pipelines.targets.kubeflow.cluster_jobs import (
    OUT_OF_MEMORY,
    Failure,
    HeldUp,
    api_error,
    create_job,
    delete_job,
    lines_of_pod,
    memory_was_full,
    names_of_jobs,
    owner_of,
    service_errors,
)
from gpu_pipelines.targets.kubeflow.node_choices import scheduling_of
from gpu_pipelines.targets.kubeflow.pod_starts import held_up, suspended
from gpu_pipelines.targets.kubeflow.train_job_manifest import NODE, manifest_of
from gpu_pipelines.targets.kubeflow.train_job_spec import JobRequest

#: Label of the pods of a TrainJob.
_JOB_LABEL = "jobset.sigs.k8s.io/jobset-name"
_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
#: Condition of a pod whose node was taken away: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/.
_DISRUPTED = "DisruptionTarget"
#: Reason of a TrainJob that reached its deadline (`TrainJobDeadlineExceededReason`).
_TOO_LONG = "DeadlineExceeded"
#: Condition of a TrainJob that Kueue has not let go yet.
_SUSPENDED = "Suspended"
#: Group and version of its API.
TRAINER_API = ("trainer.kubeflow.org", "v1alpha1")


class TrainJobs:
    """The TrainJobs of the namespace that this process or the current kubeconfig is in.

    Args:
        client: of the SDK; see `cluster_jobs.connected`.
    """

    kind = "TrainJob"

    def __init__(self, client: Any) -> None:
        self._client, self._backend = client, client.backend
        self._api = self._backend.custom_api
        self._train_jobs = (*TRAINER_API, self._backend.namespace, "trainjobs")

    def create(self, job: JobRequest) -> bool:
        """See `Jobs`; the cluster needs the runtime."""
        with service_errors(
            f"Creating the TrainJob {job.name}",
            f"Look whether Kubeflow Trainer with the runtime {job.spec.runtime} is installed, and the step's service "
            "account may create TrainJobs: docs/kubeflow.md.",
        ):
            kind = self._client.get_runtime(job.spec.runtime).kind.value
            return create_job(self._api, self._train_jobs, manifest_of(job, runtime_kind=kind))

    def find(self, labels: Mapping[str, str]) -> list[str]:
        """See `Jobs`."""
        return names_of_jobs(self._api, self._train_jobs, self.kind, labels)

    def owner(self) -> dict[str, Any] | None:
        """See `owner_of`."""
        return owner_of(self._backend, self.kind)

    def state(self, name: str) -> str:
        """See `Jobs`."""
        with service_errors(f"Looking at the TrainJob {name}"):
            job = self._api.get_namespaced_custom_object(*self._train_jobs, name)
            pods = _newest_by_node(self._pods(name))
        true = _true_conditions(job)
        if ended := [each for each in ("Complete", "Failed") if each in true]:
            return ended[0]
        begun = [pod for pod in pods if pod.status.phase in ("Running", "Succeeded")]
        # The SDK takes one that a queue has let go for one that was only created, because it has a condition.
        return "Running" if len(begun) == job["spec"]["trainer"]["numNodes"] else "Created"

    def log_lines(self, name: str, node: int) -> Iterator[tuple[str, str]]:
        """See `Jobs`."""
        with service_errors(f"Reading the log of {name}"):
            for pod in _newest_by_node(self._pods(name)):
                if _node_of(pod) == node and pod.status.phase != "Pending":
                    yield from lines_of_pod(self._backend.core_api, self._backend.namespace, pod.metadata.name, NODE)

    def failure(self, name: str, errors: Sequence[UserError], nodes: int) -> Failure:
        """By what the nodes have left, and by their pods; see `Jobs`."""
        with service_errors(f"Looking at the pods of {name}"):
            status = self._api.get_namespaced_custom_object(*self._train_jobs, name).get("status", {})
            if any(each.get("reason") == _TOO_LONG for each in status.get("conditions", [])):
                return Failure(
                    UserError(f"The TrainJob {name} ran for longer than its limit (--hours)."), resumable=False
                )
            pods = self._pods(name)
        newest = _newest_by_node(pods)
        statuses = {pod.metadata.name: _exit_status(pod) for pod in newest}
        if disrupted := {pod.metadata.name: why for pod in newest if (why := _disruption(pod)) is not None}:
            why = f" ({said})" if (said := next(filter(None, disrupted.values()), "")) else ""
            return Failure(NodeLostError(f"the nodes of {', '.join(disrupted)} were taken away{why}"), resumable=True)
        failed = [pod for pod in newest if statuses[pod.metadata.name] not in (None, 0, INTERRUPTED)]
        killed = [memory_was_full(pod) for pod in newest if _was_full(pod)]
        # Of the nodes that failed one may be the cause, and others have only lost it.
        if causes := [error for error in [*errors, *killed] if not isinstance(root_of(error), NodeLostError)]:
            return Failure(min(causes, key=distance_from_cause), resumable=False)
        if INTERRUPTED in statuses.values():
            return Failure(UserError("the training was interrupted and saved its state"), resumable=True)
        if errors or len(newest) < nodes:
            gone = NodeLostError(f"{nodes - len(newest)} of {nodes} pods are gone")
            return Failure(errors[0] if errors else gone, resumable=True)
        ends = "; ".join(f"{pod.metadata.name} exited with {statuses[pod.metadata.name]}" for pod in failed)
        return Failure(ProcessFailedError(f"The TrainJob {name} failed{': ' + ends if ends else ''}."), resumable=False)

    def delete(self, name: str) -> None:
        """See `Jobs`."""
        delete_job(self._api, self._train_jobs, self.kind, name)

    def without_node(self, name: str) -> tuple[list[str], str]:
        """See `Jobs`."""
        with service_errors(f"Looking at the pods of {name}"):
            pods = self._pods(name)
        return scheduling_of(self._backend.core_api, self._backend.namespace, pods)

    def held_up(self, name: str, nodes: int) -> HeldUp | None:
        """See `Jobs`."""
        with service_errors(f"Looking at the pods of {name}"):
            pods = _newest_by_node(self._pods(name))
            job = {} if pods else self._api.get_namespaced_custom_object(*self._train_jobs, name)
        if _SUSPENDED in _true_conditions(job):
            return suspended(name)
        return held_up(self._backend.core_api, self._backend.namespace, pods, nodes, (f"{name}-{NODE}-0", name))

    def is_running(self, name: str) -> bool:
        """See `Jobs`."""
        with service_errors(f"Looking at the pods of {name}"):
            return any(pod.status.phase not in (None, "Pending") for pod in self._pods(name))

    def is_gone(self, name: str) -> bool:
        """See `PlacedJobs`."""
        with service_errors(f"Looking at the TrainJob {name}"):
            try:
                self._api.get_namespaced_custom_object(*self._train_jobs, name)
            except api_error() as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                return not self._pods(name)
        return False

    def _pods(self, name: str) -> list[Any]:
        selector = f"{_JOB_LABEL}={name}"
        return list(self._backend.core_api.list_namespaced_pod(self._backend.namespace, label_selector=selector).items)


def _true_conditions(job: Mapping[str, Any]) -> set[str]:
    """The types of the conditions of a TrainJob that are so."""
    return {each["type"] for each in job.get("status", {}).get("conditions", []) if each["status"] == "True"}


def _newest_by_node(pods: Sequence[Any]) -> list[Any]:
    """The last pod of each node, by node: Kubernetes may have replaced one that failed."""
    newest: dict[int, Any] = {}
    for pod in sorted(pods, key=lambda pod: str(pod.metadata.creation_timestamp)):
        newest[_node_of(pod)] = pod
    return [newest[node] for node in sorted(newest)]


def _node_of(pod: Any) -> int:
    return int(pod.metadata.labels.get(_INDEX_LABEL, 0))


def _disruption(pod: Any) -> str | None:
    """Why the node of a pod was taken away, in Kubernetes's words; None where it was not."""
    conditions = pod.status.conditions or []
    found = (each for each in conditions if each.type == _DISRUPTED and each.status == "True")
    return next(((each.message or "").rstrip(".") for each in found), None)


def _exit_status(pod: Any) -> int | None:
    """Exit status of a pod's container; None if it has not ended."""
    ended = _end(pod)
    return int(ended.exit_code) if ended else None


def _was_full(pod: Any) -> bool:
    """Whether a pod's container was killed because it had used up its memory."""
    ended = _end(pod)
    return bool(ended and ended.reason == OUT_OF_MEMORY)


def _end(pod: Any) -> Any | None:
    """How a pod's container has ended; None if it has not."""
    ends = (each.state.terminated for each in pod.status.container_statuses or [] if each.name == NODE and each.state)
    return next((each for each in ends if each is not None), None)

"""TrainJobs of Kubeflow Trainer through its SDK: creating, checking, reading and deleting them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu_pipelines.errors import INTERRUPTED, NodeLostError, NotFoundError, ProcessFailedError, UserError
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
from gpu_pipelines.targets.kubeflow.in_cluster.train_job_manifest import NODE, manifest_of
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import JobRequest
from gpu_pipelines.targets.kubeflow.pod_starts import HeldUp, suspended

_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
#: Condition of a pod whose node was taken away: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/.
_DISRUPTED = "DisruptionTarget"
#: Group and version of its API.
TRAINER_API = ("trainer.kubeflow.org", "v1alpha1")


class TrainJobs(Jobs):
    """TrainJobs; arguments as for `ClusterObjects`."""

    kind, api, pod_label = "TrainJob", TRAINER_API, "jobset.sigs.k8s.io/jobset-name"

    def create(self, job: JobRequest) -> bool:
        """See `Jobs`; the cluster needs the runtime."""
        with service_errors(
            f"Creating the TrainJob {job.name}",
            f"Check that Kubeflow Trainer with the runtime {job.spec.runtime} is installed, and that the step's "
            "service account may create TrainJobs: docs/kubeflow.md.",
        ):
            kind = self._client.get_runtime(job.spec.runtime).kind.value
            return self._create(manifest_of(job, runtime_kind=kind))

    def state(self, name: str) -> str:
        """See `Jobs`."""
        job, pods = self._get(name), _newest_by_node(self._pods(name))
        true = _true_conditions(job)
        if ended := [each for each in ("Complete", "Failed") if each in true]:
            return ended[0]
        begun = [pod for pod in pods if pod.status.phase in ("Running", "Succeeded")]
        # The SDK shows a job that a queue has admitted as only created, because it has a condition.
        return "Running" if len(begun) == job["spec"]["trainer"]["numNodes"] else "Created"

    def log_lines(self, name: str, node: int) -> Iterator[tuple[str, str]]:
        """See `Jobs`."""
        with service_errors(f"Reading the log of {name}"):
            for pod in _newest_by_node(self._pods(name)):
                if _node_of(pod) == node and pod.status.phase != "Pending":
                    yield from self._lines(pod.metadata.name, NODE)

    def failure(self, name: str, errors: Sequence[UserError], nodes: int) -> Failure:
        """From the errors of the nodes, and from their pods; see `Jobs`."""
        conditions = self._get(name).get("status", {}).get("conditions", [])
        if any(each.get("reason") == TOO_LONG for each in conditions):
            return self._too_long(name)
        newest = _newest_by_node(self._pods(name))
        statuses = {pod.metadata.name: _exit_status(pod) for pod in newest}
        if disrupted := {pod.metadata.name: why for pod in newest if (why := _disruption(pod)) is not None}:
            why = f" ({said})" if (said := next(filter(None, disrupted.values()), "")) else ""
            return Failure(NodeLostError(f"the nodes of {', '.join(disrupted)} were taken away{why}"), resumable=True)
        failed = [pod for pod in newest if statuses[pod.metadata.name] not in (None, 0, INTERRUPTED)]
        if failure := caused_by([*errors, *(memory_was_full(pod) for pod in newest if _was_full(pod))]):
            return failure
        if INTERRUPTED in statuses.values():
            return Failure(UserError("the training was interrupted and saved its state"), resumable=True)
        if errors or len(newest) < nodes:
            gone = NodeLostError(f"{nodes - len(newest)} of {nodes} pods are gone")
            return Failure(errors[0] if errors else gone, resumable=True)
        ends = "; ".join(f"{pod.metadata.name} exited with {statuses[pod.metadata.name]}" for pod in failed)
        return Failure(ProcessFailedError(f"The TrainJob {name} failed{': ' + ends if ends else ''}."), resumable=False)

    def held_up(self, name: str, nodes: int) -> HeldUp | None:
        """See `ClusterObjects`."""
        pods = _newest_by_node(self._pods(name))
        if not pods and SUSPENDED in _true_conditions(self._get(name)):
            return suspended(name)
        return self._held_up(pods, nodes, (f"{name}-{NODE}-0", name))

    def is_gone(self, name: str) -> bool:
        """Whether there is no such job any more, and no pod of it."""
        try:
            self._get(name)
        except NotFoundError:
            return not self._pods(name)
        return False


def _true_conditions(job: Mapping[str, Any]) -> set[str]:
    """The types of a job's conditions that are true."""
    return {each["type"] for each in job.get("status", {}).get("conditions", []) if each.get("status") == "True"}


def _newest_by_node(pods: Sequence[Any]) -> list[Any]:
    """The last pod of each node, by node: Kubernetes may have replaced one that failed."""
    newest: dict[int, Any] = {}
    for pod in sorted(pods, key=lambda pod: str(pod.metadata.creation_timestamp)):
        newest[_node_of(pod)] = pod
    return [newest[node] for node in sorted(newest)]


def _node_of(pod: Any) -> int:
    return int(pod.metadata.labels.get(_INDEX_LABEL, 0))


def _disruption(pod: Any) -> str | None:
    """Why the node of a pod was taken away, in Kubernetes's words; None if it was not."""
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
    """The end of a pod's container; None if it has not ended."""
    ends = (each.state.terminated for each in pod.status.container_statuses or [] if each.name == NODE and each.state)
    return next((each for each in ends if each is not None), None)

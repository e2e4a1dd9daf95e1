"""Why pods of a job do not start, though there are nodes for them.

A Job of Kubernetes, a TrainJob, and Argo below Kubeflow Pipelines wait for an image, a volume or a quota as long as
they may run, and say so in no state of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.kubeflow.cluster_jobs import HeldUp, service_errors

#: Reasons of a container that is about to start.
_USUAL = ("ContainerCreating", "PodInitializing")
#: Reasons that somebody has to mend (`pkg/kubelet/images` and `pkg/kubelet/kuberuntime` of Kubernetes).
_LASTING = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("CreateContainerConfigError", "CreateContainerError"),
)
#: Reasons of events of a Job, a JobSet and a TrainJob that may not make what is theirs, for a quota say; and those of a
#: RayCluster and a RayJob (`ray-operator/controllers/ray/utils/constant.go` of KubeRay).
_NOT_MADE = (
    *("FailedCreate", "JobCreationFailed", "TrainJobResourcesCreationFailed"),
    *("FailedToCreateHeadPod", "FailedToCreateWorkerPod", "FailedToCreateRayCluster", "FailedToCreateRayJobSubmitter"),
)


def is_usual(reason: str) -> bool:
    """Whether a container waits for nothing but its start, by the reason that Kubernetes gives."""
    return reason in _USUAL


def suspended(name: str) -> HeldUp:
    """What keeps the pods of a job from starting that Kueue, or somebody, has not let go."""
    return HeldUp(f"{name} is suspended: it waits in its queue, or for somebody who lets it go on")


def held_up(api: Any, namespace: str, pods: Sequence[Any], nodes: int, makers: Sequence[str]) -> HeldUp | None:
    """What keeps pods of a job from starting; None where that is nothing, or a node.

    Args:
        api: Kubernetes's own.
        namespace: theirs.
        pods: those that there are.
        nodes: how many there are to be.
        makers: names of what makes them, one after the other.
    """
    for pod in pods:
        for waiting in _waiting(pod):
            if not is_usual(waiting.reason):
                said = f"{pod.metadata.name}: {waiting.reason}: {waiting.message or ''}".rstrip(": ")
                return HeldUp(said, waiting.reason in _LASTING)
    for pod in pods:
        if any(_waiting(pod)):
            event = _newest_event(api, namespace, pod.metadata.name)
            if event and event.type == "Warning":
                return HeldUp(f"{pod.metadata.name}: {event.message}")
    for maker in makers if len(pods) < nodes else ():
        event = _newest_event(api, namespace, maker)
        if event and event.reason in _NOT_MADE:
            return HeldUp(f"{nodes - len(pods)} of {nodes} pods are not made: {event.message}")
    return None


def _waiting(pod: Any) -> Iterator[Any]:
    for status in [*(pod.status.init_container_statuses or []), *(pod.status.container_statuses or [])]:
        if status.state and status.state.waiting:
            yield status.state.waiting


def _newest_event(api: Any, namespace: str, name: str) -> Any | None:
    """The last event of an object; None for none, and where events may not be read."""
    try:
        with service_errors(f"Reading the events of {name}"):
            events = api.list_namespaced_event(namespace, field_selector=f"involvedObject.name={name}").items
    except UserError:
        return None
    return max(events, key=lambda event: str(event.last_timestamp or event.event_time), default=None)

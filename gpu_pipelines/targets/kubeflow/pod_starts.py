"""Why pods of a job do not start although there are nodes for them.

A Job of Kubernetes, a TrainJob, and Argo below Kubeflow Pipelines wait for an image, a volume or a quota as long as
they may run, and no state of theirs shows it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.kubeflow.cluster_api import service_errors

#: Seconds for which a pod may lack a node without a message of the autoscaler, or lack an image, for tests.
PATIENCE = "GPU_PIPELINES_UNSCHEDULABLE_SECONDS"
_PATIENCE = 900.0
#: The autoscaler's reasons for a pod for which it creates no node.
_NO_NODE = ("FailedScaleUp", "NotTriggerScaleUp")

#: Reasons of a container that is about to start.
_USUAL = ("ContainerCreating", "PodInitializing")
#: Reasons that a person has to fix (`pkg/kubelet/images` and `pkg/kubelet/kuberuntime` of Kubernetes).
_LASTING = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("CreateContainerConfigError", "CreateContainerError"),
)
#: Reasons of events of a Job, a JobSet and a TrainJob that may not create their objects, such as for a quota; and those
#: of a RayCluster and a RayJob (`ray-operator/controllers/ray/utils/constant.go` of KubeRay).
_NOT_MADE = (
    *("FailedCreate", "JobCreationFailed", "TrainJobResourcesCreationFailed"),
    *("FailedToCreateHeadPod", "FailedToCreateWorkerPod", "FailedToCreateRayCluster", "FailedToCreateRayJobSubmitter"),
)


def patience() -> float:
    """Seconds for which a pod may wait for something that will not come by itself."""
    return float(os.environ.get(PATIENCE) or _PATIENCE)


@dataclass(frozen=True)
class HeldUp:
    """What keeps pods from starting.

    Attributes:
        why: in Kubernetes's words, with the name of the pod.
        is_lasting: whether it stays until a person fixes it.
    """

    why: str
    is_lasting: bool = False


def is_usual(reason: str) -> bool:
    """Whether a container only waits for its start, by Kubernetes's reason."""
    return reason in _USUAL


def suspended(name: str) -> HeldUp:
    """Why the pods of a job do not start that Kueue, or a person, has suspended."""
    return HeldUp(f"{name} is suspended: it waits in its queue, or for somebody to resume it")


def held_up(api: Any, namespace: str, pods: Sequence[Any], nodes: int, makers: Sequence[str]) -> HeldUp | None:
    """What keeps pods of a job from starting; None for nothing, and for a missing node.

    Args:
        api: Kubernetes's client.
        namespace: namespace of the pods.
        pods: the existing pods.
        nodes: number of pods that there should be.
        makers: names of the objects that create them, one after the other.
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
            return HeldUp(f"{nodes - len(pods)} of {nodes} pods were not created: {event.message}")
    return None


def _waiting(pod: Any) -> Iterator[Any]:
    for status in [*(pod.status.init_container_statuses or []), *(pod.status.container_statuses or [])]:
        if status.state and status.state.waiting:
            yield status.state.waiting


def _newest_event(api: Any, namespace: str, name: str) -> Any | None:
    """The last event of an object; None for none, and if events may not be read."""
    events = _events(api, namespace, name)
    return max(events, key=lambda event: str(event.last_timestamp or event.event_time), default=None)


def _events(api: Any, namespace: str, name: str) -> list[Any]:
    """The events of an object; none if they may not be read: then the caller waits until its patience ends."""
    try:
        with service_errors(f"Reading the events of {name}"):
            return list(api.list_namespaced_event(namespace, field_selector=f"involvedObject.name={name}").items)
    except UserError:
        return []


def scheduling_of(api: Any, namespace: str, pods: list[Any]) -> tuple[list[str], str]:
    """The pods for which there is no node, and the autoscaler's message about the first of them that has one.

    Args:
        api: Kubernetes's client.
        namespace: namespace of the pods.
        pods: pods of a job.
    """
    waiting = [pod for pod in pods if any(_is_unschedulable(each) for each in pod.status.conditions or [])]
    for pod in waiting:
        events = _events(api, namespace, pod.metadata.name)
        said = [str(event.message) for event in events if event.reason in _NO_NODE]
        if said:
            return [each.metadata.name for each in waiting], said[-1]
    return [pod.metadata.name for pod in waiting], ""


def _is_unschedulable(condition: Any) -> bool:
    return bool(
        condition.type == "PodScheduled" and condition.status == "False" and condition.reason == "Unschedulable"
    )

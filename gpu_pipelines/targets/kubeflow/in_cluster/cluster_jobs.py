"""Jobs of a cluster that do the work of a step on several nodes: the common part of TrainJobs and RayJobs.

Nothing else imports Kubeflow's SDK, which connects to the cluster for both.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, TypeVar

from gpu_pipelines.distributed.signals import Signalled
from gpu_pipelines.errors import (
    Interrupted,
    NodeLostError,
    NoMachinesError,
    ProcessKilledError,
    QuotaExceededError,
    UnavailableError,
    UserError,
    distance_from_cause,
    root_of,
)
from gpu_pipelines.targets.kubeflow.cluster_api import api_error, service_errors
from gpu_pipelines.targets.kubeflow.placement.train_job_spec import JobRequest
from gpu_pipelines.targets.kubeflow.pod_starts import HeldUp, held_up, patience, scheduling_of

#: Set by Kubeflow Pipelines in the pods of its steps.
_POD_NAME = "KFP_POD_NAME"
_SECONDS_BETWEEN_STREAMS = 2.0
#: Seconds for making a connection, and for the next line of a log: a silent connection may be lost.
_LOG_TIMEOUT = (15, 600)
_MOST_MISSES = 5
#: How long to wait for a cluster that does not answer: the nodes go on computing while its control plane is upgraded,
#: which takes minutes in a zonal cluster.
_PATIENCE = 1800.0
#: Reason of a job that reached its deadline (`TrainJobDeadlineExceededReason`, `JobFailedReason`).
TOO_LONG = "DeadlineExceeded"
#: The condition of a job that Kueue has not yet admitted.
SUSPENDED = "Suspended"
#: Kubernetes's reason for a container that has used up its memory.
OUT_OF_MEMORY = "OOMKilled"
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Failure:
    """Why a job failed.

    Attributes:
        error: the error for the user.
        resumable: whether it can be created again and continue: a node was taken away, or the step says so.
    """

    error: UserError
    resumable: bool


def memory_was_full(pod: Any) -> ProcessKilledError:
    """The error for a pod whose container was killed because it had used up its memory."""
    return ProcessKilledError(
        f"The memory of {pod.metadata.name} was full, and it was killed ({OUT_OF_MEMORY}).",
        "Take a machine type with more memory, or have fewer processes load data.",
    )


class ClusterObjects:
    """Objects with pods that this project creates in the namespace of this process or of the current kubeconfig.

    Args:
        client: client of the SDK; see `cluster_api.connected`.

    Attributes:
        kind: Kubernetes's name of the kind.
        api: group and version.
        pod_label: the label of its pods that holds its name.
    """

    kind: ClassVar[str]
    api: ClassVar[tuple[str, str]]
    pod_label: ClassVar[str]

    def __init__(self, client: Any) -> None:
        self._client, self._core, self._api = client, client.backend.core_api, client.backend.custom_api
        self._namespace = client.backend.namespace
        self._place = (*self.api, self._namespace, f"{self.kind.lower()}s")

    def find(self, labels: Mapping[str, str]) -> list[str]:
        """Names of the objects with some labels, without those that are being deleted.

        Raises:
            UserError: the cluster cannot be reached, or does not allow it.
        """
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        with service_errors(f"Looking for {self.kind}s of this step", "May its service account list them?"):
            found = self._api.list_namespaced_custom_object(*self._place, label_selector=selector)
        metadata = [each["metadata"] for each in found["items"]]
        return [str(each["name"]) for each in metadata if not each.get("deletionTimestamp")]

    def owner(self) -> dict[str, Any] | None:
        """Reference to the object with which it is deleted: the workflow that this pod belongs to, else the pod.

        The workflow outlives its pods, so that a step whose pod is replaced finds its job.

        Returns:
            The reference; None if this is not a pod, or the pod may not be read, for which it prints a warning.

        Raises:
            UnavailableError: the cluster does not answer.
        """
        name = os.environ.get(_POD_NAME) or socket.gethostname()
        try:
            with service_errors(f"Reading the pod {name}"):
                pod = self._core.read_namespaced_pod(name, self._namespace)
        except UnavailableError:
            raise
        except UserError as error:
            print(f"warning: nothing owns the {self.kind}. {error.problem}", flush=True)
            return None
        controllers = [each for each in pod.metadata.owner_references or [] if each.controller]
        if not controllers:
            return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.metadata.uid}
        above = controllers[0]
        return {"apiVersion": above.api_version, "kind": above.kind, "name": above.name, "uid": above.uid}

    def delete(self, name: str) -> None:
        """Deletes an object with its pods; a missing one is ignored.

        Raises:
            UserError: the cluster cannot be reached.
        """
        remedy = f"Delete it: kubectl delete {self.kind.lower()} {name}."
        with service_errors(f"Deleting the {self.kind} {name}", remedy):
            try:
                # Its name is free again only once its pods are gone.
                self._api.delete_namespaced_custom_object(*self._place, name, propagation_policy="Foreground")
            except api_error() as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise

    def without_node(self, name: str) -> tuple[list[str], str]:
        """The pods of one for which there is no node, and the autoscaler's message about that; empty for none."""
        return scheduling_of(self._core, self._namespace, self._pods(name))

    def held_up(self, name: str, nodes: int) -> HeldUp | None:
        """What keeps pods of one from starting, although there are nodes for them; None for nothing."""
        return self._held_up(self._pods(name), nodes)

    def is_running(self, name: str) -> bool:
        """Whether a pod of one has a node."""
        return any(pod.status.phase not in (None, "Pending") for pod in self._pods(name))

    def _create(self, manifest: Mapping[str, Any], *, is_strict: bool = False) -> bool:
        """Creates one; False if its name is taken. If it is strict, unknown fields are refused."""
        options = {"field_validation": "Strict"} if is_strict else {}
        try:
            self._api.create_namespaced_custom_object(*self._place, manifest, **options)
        except api_error() as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return False
        return True

    def _get(self, name: str) -> dict[str, Any]:
        with service_errors(f"Looking at the {self.kind} {name}"):
            return dict(self._api.get_namespaced_custom_object(*self._place, name))

    def _pods(self, name: str) -> list[Any]:
        return self._labelled(self.pod_label, name)

    def _labelled(self, label: str, value: str) -> list[Any]:
        with service_errors(f"Looking at the pods of {value}"):
            return list(self._core.list_namespaced_pod(self._namespace, label_selector=f"{label}={value}").items)

    def _held_up(self, pods: Sequence[Any], nodes: int, makers: Sequence[str] = ()) -> HeldUp | None:
        return held_up(self._core, self._namespace, pods, nodes, makers)

    def _lines(self, pod: str, container: str) -> Iterator[tuple[str, str]]:
        """The lines of a container's log while it is written, each after its time, which sorts as text."""
        stream = self._core.read_namespaced_pod_log(
            pod,
            self._namespace,
            container=container,
            follow=True,
            timestamps=True,
            _preload_content=False,
            _request_timeout=_LOG_TIMEOUT,
        )
        begun = b""
        for part in stream.stream():
            *whole, begun = (begun + part).split(b"\n")
            yield from (_timed(line) for line in whole)
        if begun:
            yield _timed(begun)


class Jobs(ClusterObjects, ABC):
    """The jobs of one kind that do the work of a step on several nodes."""

    @abstractmethod
    def create(self, job: JobRequest) -> bool:
        """Creates a job; False if its name is taken.

        Raises:
            UserError: the cluster refuses it, or lacks what it needs.
        """

    @abstractmethod
    def state(self, name: str) -> str:
        """Created, Running, Complete or Failed."""

    @abstractmethod
    def log_lines(self, name: str, node: int) -> Iterator[tuple[str, str]]:
        """The lines of a node that the cluster still has, each after its time, until it ends; none before it starts."""

    @abstractmethod
    def failure(self, name: str, errors: Sequence[UserError], nodes: int) -> Failure:
        """Why a job failed.

        Args:
            name: its name.
            errors: errors with which the step ended on its nodes.
            nodes: number of its nodes.
        """

    def _too_long(self, name: str) -> Failure:
        return Failure(UserError(f"The {self.kind} {name} ran for longer than its limit (--hours)."), resumable=False)


def caused_by(errors: Sequence[UserError]) -> Failure | None:
    """The failure by the cause among errors, as others have only lost their node; None if all have."""
    causes = [error for error in errors if not isinstance(root_of(error), NodeLostError)]
    return Failure(min(causes, key=distance_from_cause), resumable=False) if causes else None


class LogFollower:
    """Prints the lines of the first node while a job runs, in a thread of its own.

    Args:
        jobs: where to read.
        name: name of the job.
        say: called with each line.
    """

    def __init__(self, jobs: Jobs, name: str, say: Callable[[str], None]) -> None:
        self._jobs, self._name, self._say = jobs, name, say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Ends it, after it has read the existing lines."""
        self._over.set()
        self._thread.join(seconds)

    def _follow(self) -> None:
        said = ""
        while True:
            last = self._over.is_set()
            try:
                for time_of_line, line in self._jobs.log_lines(self._name, 0):
                    # A stream that breaks off starts again with the first remaining line: logs are rotated, and a
                    # restarted container has a log of its own.
                    if time_of_line > said:
                        self._say(line)
                        said = time_of_line
            except UserError:
                # The log is only for the reader; the state of the job is read elsewhere.
                pass
            if last:
                return
            self._over.wait(_SECONDS_BETWEEN_STREAMS)


class Misses:
    """Counts failed reads of a job in a row.

    Args:
        say: called with each line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._count, self._since = say, 0, 0.0

    def forget(self) -> None:
        """Notes a successful read."""
        self._count = 0

    def add(self, error: UserError) -> None:
        """Notes a failed read; raises its error if there were too many."""
        self._count += 1
        if self._count == 1:
            self._since = time.monotonic()
        if self._count < _MOST_MISSES:
            return
        if not isinstance(error, UnavailableError) or time.monotonic() - self._since > _PATIENCE:
            raise error
        if self._count == _MOST_MISSES:
            self._say(f"{error.problem}; waiting for it")


def answered(ask: Callable[[], _Answer], every: float, stopped: Signalled, say: Callable[[str], None]) -> _Answer:
    """A cluster's answer, requested again while it cannot answer; `wait` describes the arguments.

    Args:
        ask: may be called again if its answer was lost.

    Raises:
        UserError: the cluster refuses, or has not answered for half an hour.
        Interrupted: this process was interrupted.
    """
    misses = Misses(say)
    while True:
        try:
            return ask()
        except UnavailableError as error:
            misses.add(error)
        if stopped.wait(every):
            raise Interrupted("the step was interrupted while the cluster did not answer")


def wait(
    jobs: Jobs,
    name: str,
    every: float,
    stopped: Signalled,
    say: Callable[[str], None],
    end: Callable[[], str] = lambda: "",
) -> str:
    """Waits until a job is complete or has failed, and reports each state.

    Args:
        jobs: the cluster's jobs.
        name: its name.
        every: seconds between two reads.
        stopped: whether this process was interrupted. An exception of a signal would be lost in the SDK, which catches
            everything.
        say: called with each line.
        end: returns Complete or Failed if that is known although nodes have not ended, or not begun; else empty.

    Returns:
        Complete or Failed.

    Raises:
        UserError: the cluster refused to tell several times in a row, or has not answered for half an hour.
        Interrupted: this process was interrupted.
    """
    last, misses = "", Misses(say)
    while True:
        try:
            state = end() or jobs.state(name)
            misses.forget()
        except (NoMachinesError, QuotaExceededError):
            raise
        except UserError as error:
            misses.add(error)
            state = last
        if state != last:
            say(f"{jobs.kind} {name}: {state.lower()}")
            last = state
        if state in ("Complete", "Failed"):
            return state
        if stopped.wait(every):
            raise Interrupted(f"the step was interrupted, and its {jobs.kind} is deleted")


def _timed(line: bytes) -> tuple[str, str]:
    time_of_line, _, text = line.decode(errors="replace").partition(" ")
    return time_of_line, text


class Starts:
    """Reports why pods have not started, whenever that changes, and ends jobs that need a person to fix them.

    Args:
        jobs: the cluster's jobs.
        nodes: number of nodes.
        say: called with each line.
        tell_of_nodes: whether to report pods for which there is no node as well.
        is_elastic: whether the work begins with the available nodes: then one running node is enough.
    """

    def __init__(
        self,
        jobs: ClusterObjects,
        nodes: int,
        say: Callable[[str], None],
        *,
        tell_of_nodes: bool = False,
        is_elastic: bool = False,
    ) -> None:
        self._jobs, self._nodes, self._say = jobs, nodes, say
        self._tells_of_nodes, self._is_elastic = tell_of_nodes, is_elastic
        self._said, self._since = "", 0.0

    def look(self, name: str) -> None:
        """Checks a job.

        Raises:
            UserError: a pod cannot start, and could not for a quarter of an hour.
        """
        try:
            said, is_lasting = self._why(name)
        except UserError:
            # It is only for the reader; the state of the job is read elsewhere.
            return
        if said and said != self._said:
            self._say(said)
        self._said = said
        self._since = (self._since or time.monotonic()) if is_lasting else 0.0
        if is_lasting and time.monotonic() - self._since > patience():
            # Its nodes cost as much as at work, and the Job of Kubernetes would wait as long as it may run.
            raise UserError(f"The {self._jobs.kind} {name} does not start: {said}.", "Fix it, and run it again.")

    def _why(self, name: str) -> tuple[str, bool]:
        if self._tells_of_nodes:
            pods, why = self._jobs.without_node(name)
            if pods:
                return f"no node yet for {', '.join(pods)}: {why or 'the autoscaler says nothing'}", False
        held_up = self._jobs.held_up(name, self._nodes)
        if not held_up:
            return "", False
        return held_up.why, held_up.is_lasting and not (self._is_elastic and self._jobs.is_running(name))

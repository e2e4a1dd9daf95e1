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
from gpu_pipelines.targets.kubeflow.pod_starts import HeldUp, held_up, patience, scheduling_of
from gpu_pipelines.targets.kubeflow.train_job_spec import JobRequest

#: Set by Kubeflow Pipelines in the pods of its steps.
_POD_NAME = "KFP_POD_NAME"
_SECONDS_BETWEEN_STREAMS = 2.0
#: Seconds within which a connection is made, and within which a log has a line: one that says nothing may be lost.
_LOG_TIMEOUT = (15, 600)
_MOST_MISSES = 5
#: For how long a cluster is waited for that does not answer: the nodes compute on while its control plane is upgraded,
#: which takes minutes where it is in one zone.
_PATIENCE = 1800.0
#: Reason of a job that reached its deadline (`TrainJobDeadlineExceededReason`, `JobFailedReason`).
TOO_LONG = "DeadlineExceeded"
#: How a job says that Kueue has not let it go yet.
SUSPENDED = "Suspended"
#: Kubernetes's reason of a container that has used up its memory.
OUT_OF_MEMORY = "OOMKilled"
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Failure:
    """Why a job failed.

    Attributes:
        error: for the user.
        resumable: whether it can be created again and continue: a node was taken away, or the step says so.
    """

    error: UserError
    resumable: bool


def memory_was_full(pod: Any) -> ProcessKilledError:
    """The error of a pod whose container was killed because it had used up its memory."""
    return ProcessKilledError(
        f"The memory of {pod.metadata.name} was full, and it was killed ({OUT_OF_MEMORY}).",
        "Take a machine type with more memory, or have fewer processes load data.",
    )


class ClusterObjects:
    """What this project makes in the namespace that this process or the current kubeconfig is in, and has pods.

    Args:
        client: of the SDK; see `cluster_api.connected`.

    Attributes:
        kind: as Kubernetes calls it.
        api: group and version.
        pod_label: the label of its pods that has its name.
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
        """Reference to what it is deleted with: the workflow that this pod belongs to, else the pod.

        The workflow outlives its pods, so that a step whose pod is replaced finds its job.

        Returns:
            The reference; None where this is no pod, or the pod may not be read, which is said.

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
                # Its name is free again once its pods are gone, and not before.
                self._api.delete_namespaced_custom_object(*self._place, name, propagation_policy="Foreground")
            except api_error() as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise

    def without_node(self, name: str) -> tuple[list[str], str]:
        """The pods of one for which there is no node, and what the autoscaler says of that; empty for nothing."""
        return scheduling_of(self._core, self._namespace, self._pods(name))

    def held_up(self, name: str, nodes: int) -> HeldUp | None:
        """What keeps pods of one from starting, though there are nodes for them; None for nothing."""
        return self._held_up(self._pods(name), nodes)

    def is_running(self, name: str) -> bool:
        """Whether a pod of one has a node."""
        return any(pod.status.phase not in (None, "Pending") for pod in self._pods(name))

    def _create(self, manifest: Mapping[str, Any], *, is_strict: bool = False) -> bool:
        """Creates one; whether there was none of its name. Where it is strict, a field that is not known is refused."""
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
        """The lines of a container's log while it is written, each after its time, which can be sorted as text."""
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
        """Creates a job; False if there is one of its name.

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
            errors: with which the step has ended on its nodes.
            nodes: how many it had.
        """

    def _too_long(self, name: str) -> Failure:
        return Failure(UserError(f"The {self.kind} {name} ran for longer than its limit (--hours)."), resumable=False)


def caused_by(errors: Sequence[UserError]) -> Failure | None:
    """The failure by the cause among errors, of which others have only lost their node; None where all have."""
    causes = [error for error in errors if not isinstance(root_of(error), NodeLostError)]
    return Failure(min(causes, key=distance_from_cause), resumable=False) if causes else None


class LogFollower:
    """Prints the lines of the first node while a job runs, in a thread of its own.

    Args:
        jobs: where to read.
        name: name of the job.
        say: takes a line.
    """

    def __init__(self, jobs: Jobs, name: str, say: Callable[[str], None]) -> None:
        self._jobs, self._name, self._say = jobs, name, say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Ends it, after the lines that are there have been read."""
        self._over.set()
        self._thread.join(seconds)

    def _follow(self) -> None:
        said = ""
        while True:
            last = self._over.is_set()
            try:
                for time_of_line, line in self._jobs.log_lines(self._name, 0):
                    # A stream that breaks off begins anew with the first line that is left: logs are rotated, and a
                    # container that is started again has one of its own.
                    if time_of_line > said:
                        self._say(line)
                        said = time_of_line
            except UserError:
                # The log is for the reader alone; the state of the job is asked for elsewhere.
                pass
            if last:
                return
            self._over.wait(_SECONDS_BETWEEN_STREAMS)


class Misses:
    """Counts failed looks at a job in a row.

    Args:
        say: takes a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._count, self._since = say, 0, 0.0

    def forget(self) -> None:
        """Notes that a look succeeded."""
        self._count = 0

    def add(self, error: UserError) -> None:
        """Notes that a look failed; raises its error if there were too many."""
        self._count += 1
        if self._count == 1:
            self._since = time.monotonic()
        if self._count < _MOST_MISSES:
            return
        if not isinstance(error, UnavailableError) or time.monotonic() - self._since > _PATIENCE:
            raise error
        if self._count == _MOST_MISSES:
            self._say(f"{error.problem}; it is waited for")


def answered(ask: Callable[[], _Answer], every: float, stopped: Signalled, say: Callable[[str], None]) -> _Answer:
    """What a cluster answers, asked again as long as it cannot; see `wait` for the arguments.

    Args:
        ask: may be called again where its answer was lost.

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
    """Waits until a job is complete or has failed, and tells of each state.

    Args:
        jobs: where it is.
        name: its name.
        every: seconds between two looks.
        stopped: whether this process was interrupted. An exception of a signal would be lost in the SDK, which catches
            everything.
        say: takes a line.
        end: Complete or Failed where that is known, although nodes have not ended, or not even begun; else empty.

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
    """Says why pods have not started, each time that this changes, and ends jobs that need a person to fix them.

    Args:
        jobs: where the job is.
        nodes: how many it has.
        say: takes a line.
        tell_of_nodes: whether pods for which there is no node are told of as well.
        is_elastic: whether the work begins with the nodes that are there: then one that runs is enough.
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
        """Looks at a job.

        Raises:
            UserError: a pod cannot start, and could not for a quarter of an hour.
        """
        try:
            said, is_lasting = self._why(name)
        except UserError:
            # It is for the reader alone; the state of the job is asked for elsewhere.
            return
        if said and said != self._said:
            self._say(said)
        self._said = said
        self._since = (self._since or time.monotonic()) if is_lasting else 0.0
        if is_lasting and time.monotonic() - self._since > patience():
            # Its nodes cost what they cost at work, and the Job of Kubernetes would wait as long as it may run.
            raise UserError(f"The {self._jobs.kind} {name} does not start: {said}.", "Mend it, and run it again.")

    def _why(self, name: str) -> tuple[str, bool]:
        if self._tells_of_nodes:
            pods, why = self._jobs.without_node(name)
            if pods:
                return f"no node yet for {', '.join(pods)}: {why or 'the autoscaler says nothing'}", False
        held_up = self._jobs.held_up(name, self._nodes)
        if not held_up:
            return "", False
        return held_up.why, held_up.is_lasting and not (self._is_elastic and self._jobs.is_running(name))

"""Jobs of a cluster that do the work of a step on several nodes: what TrainJobs and RayJobs have in common.

Nothing else imports Kubeflow's SDK, which connects to the cluster for both.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

from gpu_pipelines.distributed.signals import Signalled
from gpu_pipelines.errors import (
    Interrupted,
    NoMachinesError,
    ProcessKilledError,
    QuotaExceededError,
    UnavailableError,
    UserError,
)
from gpu_pipelines.network_errors import error_of_status
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
#: Kubernetes's reason of a container that has used up its memory.
OUT_OF_MEMORY = "OOMKilled"
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Failure:
    """Why a job failed.

    Attributes:
        error: for the user.
        resumable: whether it can be created again and go on: a node was taken away, or the step says so.
    """

    error: UserError
    resumable: bool


def memory_was_full(pod: Any) -> ProcessKilledError:
    """The error of a pod whose container was killed because it had used up its memory."""
    return ProcessKilledError(
        f"The memory of {pod.metadata.name} was full, and it was killed ({OUT_OF_MEMORY}).",
        "Take a machine type with more memory, or have fewer processes load data.",
    )


@dataclass(frozen=True)
class HeldUp:
    """What keeps pods from starting.

    Attributes:
        why: in Kubernetes's words, with the name of the pod.
        is_lasting: whether it stays so until somebody mends it.
    """

    why: str
    is_lasting: bool = False


class Starting(Protocol):
    """Jobs of one kind whose pods may not have started."""

    @property
    def kind(self) -> str:
        """As Kubernetes calls it."""
        ...

    def without_node(self, name: str) -> tuple[list[str], str]:
        """The pods of a job for which there is no node, and what the autoscaler says of that; empty for nothing."""
        ...

    def held_up(self, name: str, nodes: int) -> HeldUp | None:
        """What keeps pods of a job from starting, though there are nodes for them; None for nothing."""
        ...

    def is_running(self, name: str) -> bool:
        """Whether a pod of a job has a node."""
        ...


class Jobs(Starting, Protocol):
    """The jobs of one kind in the namespace that this process or the current kubeconfig is in."""

    def create(self, job: JobRequest) -> bool:
        """Creates a job; False if there is one of its name.

        Raises:
            UserError: the cluster refuses it, or lacks what it needs.
        """
        ...

    def find(self, labels: Mapping[str, str]) -> list[str]:
        """Names of the jobs with some labels, but for those that are being deleted.

        Raises:
            UserError: the cluster cannot be reached, or does not allow it.
        """
        ...

    def owner(self) -> dict[str, Any] | None:
        """Reference to what a job of this pod is deleted with; None if there is no such thing.

        Raises:
            UnavailableError: the cluster does not answer.
        """
        ...

    def state(self, name: str) -> str:
        """Created, Running, Complete or Failed."""
        ...

    def log_lines(self, name: str, node: int) -> Iterator[tuple[str, str]]:
        """The lines of a node that the cluster still has, each after its time, until it ends; none before it starts."""
        ...

    def failure(self, name: str, errors: Sequence[UserError], nodes: int) -> Failure:
        """Why a job failed.

        Args:
            name: its name.
            errors: with which the step has ended on its nodes.
            nodes: how many it had.
        """
        ...

    def delete(self, name: str) -> None:
        """Deletes a job and its pods; one that is not there is passed over.

        Raises:
            UserError: the cluster cannot be reached.
        """
        ...


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
    """Looks at a job that told nothing, one after another.

    Args:
        say: takes a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._count, self._since = say, 0, 0.0

    def forget(self) -> None:
        """A look has told something."""
        self._count = 0

    def add(self, error: UserError) -> None:
        """A look has ended in an error, which is raised where there were too many."""
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


def owner_of(backend: Any, kind: str) -> dict[str, Any] | None:
    """Reference to what a job of this pod is deleted with: the workflow that the pod belongs to, else the pod.

    The workflow outlives its pods, so that a step whose pod is replaced finds its job.

    Args:
        backend: of the SDK.
        kind: of the job.

    Returns:
        The reference; None where this is no pod, or the pod may not be read, which is said.

    Raises:
        UnavailableError: the cluster does not answer.
    """
    name = os.environ.get(_POD_NAME) or socket.gethostname()
    try:
        with service_errors(f"Reading the pod {name}"):
            pod = backend.core_api.read_namespaced_pod(name, backend.namespace)
    except UnavailableError:
        raise
    except UserError as error:
        print(f"warning: nothing owns the {kind}. {error.problem}", flush=True)
        return None
    controllers = [each for each in pod.metadata.owner_references or [] if each.controller]
    if not controllers:
        return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.metadata.uid}
    above = controllers[0]
    return {"apiVersion": above.api_version, "kind": above.kind, "name": above.name, "uid": above.uid}


def connected() -> Any:
    """Kubeflow's client of the cluster that this process is in, or else of the current kubeconfig.

    Raises:
        UserError: the SDK is not installed, or there is no cluster to talk to.
    """
    with service_errors("Connecting to Kubernetes"):
        try:
            from kubeflow import trainer
        except ImportError as error:
            raise UserError(
                f"Kubeflow's SDK is not installed ({error.name} is missing).",
                "Run pip install 'gpu-pipelines[kubeflow]'; the image of the steps has it.",
            ) from None
        return trainer.TrainerClient()


def has_api(client: Any, group: str, version: str) -> bool:
    """Whether the cluster has an API, which everybody may ask.

    Raises:
        UserError: it cannot be reached.
    """
    with service_errors(f"Asking for {group}/{version}"):
        try:
            client.backend.custom_api.get_api_resources(group, version)
        except api_error() as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
    return True


def create_job(api: Any, place: Sequence[str], manifest: Mapping[str, Any], *, is_strict: bool = False) -> bool:
    """Creates a job; whether there was none of its name.

    Args:
        api: for custom objects.
        place: group, version, namespace and plural of the kind.
        manifest: it.
        is_strict: whether a field that the cluster does not know is refused, and not dropped.
    """
    options = {"field_validation": "Strict"} if is_strict else {}
    try:
        api.create_namespaced_custom_object(*place, manifest, **options)
    except api_error() as error:
        if error.status != HTTPStatus.CONFLICT:
            raise
        return False
    return True


def names_of_jobs(api: Any, place: Sequence[str], kind: str, labels: Mapping[str, str]) -> list[str]:
    """See `Jobs.find`; the arguments as of `create_job`."""
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    with service_errors(f"Looking for {kind}s of this step", "May its service account list them?"):
        found = api.list_namespaced_custom_object(*place, label_selector=selector)
    return [str(each["metadata"]["name"]) for each in found["items"] if not each["metadata"].get("deletionTimestamp")]


def delete_job(api: Any, place: Sequence[str], kind: str, name: str) -> None:
    """See `Jobs.delete`; the arguments as of `create_job`."""
    with service_errors(f"Deleting the {kind} {name}", f"Delete it: kubectl delete {kind.lower()} {name}."):
        try:
            # Its name is free again once its pods are gone, and not before.
            api.delete_namespaced_custom_object(*place, name, propagation_policy="Foreground")
        except api_error() as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise


def lines_of_pod(api: Any, namespace: str, pod: str, container: str) -> Iterator[tuple[str, str]]:
    """The lines of a container's log while it is written, each after its time, which can be sorted as text.

    Args:
        api: Kubernetes's own.
        namespace: of the pod.
        pod: its name.
        container: of it.
    """
    stream = api.read_namespaced_pod_log(
        pod,
        namespace,
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


def _timed(line: bytes) -> tuple[str, str]:
    time_of_line, _, text = line.decode(errors="replace").partition(" ")
    return time_of_line, text


def api_error() -> Any:
    """The error of Kubernetes's client."""
    from kubernetes.client import ApiException

    return ApiException


@contextmanager
def service_errors(what: str, remedy: str = "") -> Iterator[None]:
    """Turns what the SDK raises, which hides the API's answer behind its own error, into one line.

    Raises:
        UserError: in place of every error of the SDK, of the API, or of the network.
    """
    from urllib3.exceptions import HTTPError

    try:
        yield
    except UserError:
        raise
    except Exception as error:  # The SDK raises RuntimeError, TimeoutError, and what its clients do.
        cause = error.__cause__ or error
        body = getattr(cause, "body", None)
        said = re.search(r'"message":\s*"((?:[^"\\]|\\.)*)"', str(body)) if body else None
        text = said[1] if said else (str(cause).splitlines() or [type(cause).__name__])[0]
        problem = f"{what} failed: {text[:500]}"
        if isinstance(error, OSError) or isinstance(cause, (HTTPError, OSError)):
            raise UnavailableError(problem, remedy) from error
        raise error_of_status(getattr(cause, "status", None), problem, remedy) from error

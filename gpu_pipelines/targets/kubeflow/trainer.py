"""TrainJobs of Kubeflow Trainer through its SDK: created, looked at, read, deleted; nothing else imports the SDK."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from gpu_pipelines.distributed.signals import Signalled
from gpu_pipelines.errors import (
    INTERRUPTED,
    Interrupted,
    NodeLostError,
    ProcessFailedError,
    UserError,
    distance_from_cause,
    root_of,
)
from gpu_pipelines.network_errors import error_of_status
from gpu_pipelines.targets.kubeflow.train_job_manifest import NODE, manifest_of
from gpu_pipelines.targets.kubeflow.train_job_spec import TrainJobSpec

#: Label of the pods of a TrainJob.
_JOB_LABEL = "jobset.sigs.k8s.io/jobset-name"
_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
#: Condition of a pod whose node was taken away: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/.
_DISRUPTED = "DisruptionTarget"
#: Reason of a TrainJob that reached its deadline (`TrainJobDeadlineExceededReason`).
_TOO_LONG = "DeadlineExceeded"
#: Set by Kubeflow Pipelines in the pods of its steps.
_POD_NAME = "KFP_POD_NAME"
_SECONDS_BETWEEN_STREAMS = 2.0


@dataclass(frozen=True)
class Failure:
    """Why a TrainJob failed.

    Attributes:
        error: for the user.
        resumable: whether it can be created again and go on: a node was taken away, or the step says so.
    """

    error: UserError
    resumable: bool


class TrainJobs:
    """The TrainJobs of the namespace that this process or the current kubeconfig is in.

    Raises:
        UserError: the SDK is not installed, or there is no cluster to talk to.
    """

    def __init__(self) -> None:
        with _service_errors("Connecting to Kubernetes"):
            trainer = _sdk()
            self._client = trainer.TrainerClient()
            self._backend = self._client.backend
            self._api = self._backend.custom_api
            self._train_jobs = ("trainer.kubeflow.org", "v1alpha1", self._backend.namespace, "trainjobs")

    def create(
        self,
        name: str,
        spec: TrainJobSpec,
        command: Sequence[str],
        labels: Mapping[str, str],
        owner: Mapping[str, Any] | None,
    ) -> bool:
        """Creates a TrainJob.

        Args:
            name: its name.
            spec: what it is made of.
            command: what each node runs.
            labels: by which it is found again.
            owner: what it is deleted with; None for nothing.

        Returns:
            Whether it was created; False if there is one of that name.

        Raises:
            UserError: the cluster refuses it, or has no such runtime.
        """
        with _service_errors(
            f"Creating the TrainJob {name}",
            f"Look whether Kubeflow Trainer with the runtime {spec.runtime} is installed, and the step's service "
            "account may create TrainJobs: docs/kubeflow.md.",
        ):
            kind = self._client.get_runtime(spec.runtime).kind.value
            manifest = manifest_of(name, spec, command, runtime_kind=kind, labels=labels, owner=owner)
            try:
                self._api.create_namespaced_custom_object(*self._train_jobs, manifest)
            except _api_error() as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise
                return False
        return True

    def find(self, labels: Mapping[str, str]) -> list[str]:
        """Names of the TrainJobs with some labels, but for those that are being deleted.

        Raises:
            UserError: the cluster cannot be reached, or does not allow it.
        """
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        with _service_errors("Looking for TrainJobs of this step", "May its service account list them?"):
            found = self._api.list_namespaced_custom_object(*self._train_jobs, label_selector=selector)
        return [
            str(each["metadata"]["name"]) for each in found["items"] if not each["metadata"].get("deletionTimestamp")
        ]

    def owner(self) -> dict[str, Any] | None:
        """Reference to what a TrainJob of this pod is deleted with: the workflow that the pod belongs to, else the pod.

        The workflow outlives its pods, so that a step whose pod is replaced finds its TrainJob.

        Returns:
            The reference; None where this is no pod, or the pod cannot be read, which is said.
        """
        name = os.environ.get(_POD_NAME) or socket.gethostname()
        try:
            pod = self._backend.core_api.read_namespaced_pod(name, self._backend.namespace)
        except _api_error() as error:
            print(f"warning: nothing owns the TrainJob: the pod {name} cannot be read ({error.status})", flush=True)
            return None
        controllers = [each for each in pod.metadata.owner_references or [] if each.controller]
        if not controllers:
            return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.metadata.uid}
        above = controllers[0]
        return {"apiVersion": above.api_version, "kind": above.kind, "name": above.name, "uid": above.uid}

    def state(self, name: str) -> str:
        """Created, Running, Complete or Failed."""
        with _service_errors(f"Looking at the TrainJob {name}"):
            return str(self._client.get_job(name).status)

    def log_lines(self, name: str, node: int) -> Iterator[str]:
        """The lines of a node, from the first, until its pod ends; none if it has not started."""
        with _service_errors(f"Reading the log of {name}"):
            yield from self._client.get_job_logs(name, step=f"{NODE}-{node}", follow=True)

    def failure(self, name: str, errors: Sequence[UserError], nodes: int) -> Failure:
        """Why a TrainJob failed, by what its nodes have left and by its pods.

        Args:
            name: its name.
            errors: with which the step has ended on its nodes.
            nodes: how many it had.
        """
        with _service_errors(f"Looking at the pods of {name}"):
            status = self._api.get_namespaced_custom_object(*self._train_jobs, name).get("status", {})
            if any(each.get("reason") == _TOO_LONG for each in status.get("conditions", [])):
                return Failure(UserError(f"The TrainJob {name} ran for longer than it may (--hours)."), resumable=False)
            pods = self._backend.core_api.list_namespaced_pod(
                self._backend.namespace, label_selector=f"{_JOB_LABEL}={name}"
            ).items
        newest = _newest_by_node(pods)
        statuses = {pod.metadata.name: _exit_status(pod) for pod in newest}
        if disrupted := [pod.metadata.name for pod in newest if _is_disrupted(pod)]:
            return Failure(NodeLostError(f"the nodes of {', '.join(disrupted)} were taken away"), resumable=True)
        failed = [pod for pod in newest if statuses[pod.metadata.name] not in (None, 0, INTERRUPTED)]
        # Of the nodes that failed one may be the cause, and others have only lost it.
        if causes := [error for error in errors if not isinstance(root_of(error), NodeLostError)]:
            return Failure(min(causes, key=distance_from_cause), resumable=False)
        if INTERRUPTED in statuses.values():
            return Failure(UserError("the training was interrupted and saved its state"), resumable=True)
        if errors or len(newest) < nodes:
            gone = NodeLostError(f"{nodes - len(newest)} of {nodes} pods are gone")
            return Failure(errors[0] if errors else gone, resumable=True)
        ends = "; ".join(f"{pod.metadata.name} exited with {statuses[pod.metadata.name]}" for pod in failed)
        return Failure(ProcessFailedError(f"The TrainJob {name} failed{': ' + ends if ends else ''}."), resumable=False)

    def delete(self, name: str) -> None:
        """Deletes a TrainJob and its pods; one that is not there is passed over.

        Raises:
            UserError: the cluster cannot be reached.
        """
        with _service_errors(f"Deleting the TrainJob {name}", f"Delete it: kubectl delete trainjob {name}."):
            try:
                # Its name is free again once its pods are gone, and not before.
                self._api.delete_namespaced_custom_object(*self._train_jobs, name, propagation_policy="Foreground")
            except _api_error() as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise


class LogFollower:
    """Prints the lines of the first node while the TrainJob runs, in a thread of its own.

    Args:
        jobs: where to read.
        name: name of the TrainJob.
        say: takes a line.
    """

    def __init__(self, jobs: TrainJobs, name: str, say: Callable[[str], None]) -> None:
        self._jobs, self._name, self._say = jobs, name, say
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Ends it, after the lines that are there have been read."""
        self._over.set()
        self._thread.join(seconds)

    def _follow(self) -> None:
        said = 0
        while True:
            last = self._over.is_set()
            try:
                for number, line in enumerate(self._jobs.log_lines(self._name, 0)):
                    # A stream that breaks off begins anew with the first line.
                    if number >= said:
                        self._say(line)
                        said += 1
            except UserError:
                # The log is for the reader alone; the state of the job is asked for elsewhere.
                pass
            if last:
                return
            self._over.wait(_SECONDS_BETWEEN_STREAMS)


def _newest_by_node(pods: Sequence[Any]) -> list[Any]:
    """The last pod of each node, by node: Kubernetes may have replaced one that failed."""
    newest: dict[int, Any] = {}
    for pod in sorted(pods, key=lambda pod: str(pod.metadata.creation_timestamp)):
        newest[int(pod.metadata.labels.get(_INDEX_LABEL, 0))] = pod
    return [newest[node] for node in sorted(newest)]


def _is_disrupted(pod: Any) -> bool:
    conditions = pod.status.conditions or []
    return any(condition.type == _DISRUPTED and condition.status == "True" for condition in conditions)


def _exit_status(pod: Any) -> int | None:
    """Exit status of a pod's container; None if it has not ended."""
    for status in pod.status.container_statuses or []:
        ended = status.state.terminated if status.name == NODE and status.state else None
        if ended is not None:
            return int(ended.exit_code)
    return None


def _sdk() -> Any:
    try:
        from kubeflow import trainer
    except ImportError as error:
        raise UserError(
            f"Kubeflow's SDK is not installed ({error.name} is missing).",
            "Run pip install 'gpu-pipelines[kubeflow]'; the image of the steps has it.",
        ) from None
    return trainer


def _api_error() -> Any:
    from kubernetes.client import ApiException

    return ApiException


@contextmanager
def _service_errors(what: str, remedy: str = "") -> Iterator[None]:
    """Turns what the SDK raises, which hides the API's answer behind its own error, into one line.

    Raises:
        UserError: in place of every error of the SDK, of the API, or of the network.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # The SDK raises RuntimeError, TimeoutError, and what its clients do.
        cause = error.__cause__ or error
        body = getattr(cause, "body", None)
        said = re.search(r'"message":\s*"((?:[^"\\]|\\.)*)"', str(body)) if body else None
        text = said[1] if said else (str(cause).splitlines() or [type(cause).__name__])[0]
        raise error_of_status(getattr(cause, "status", None), f"{what} failed: {text[:500]}", remedy) from error


def wait(
    jobs: TrainJobs,
    name: str,
    every: float,
    stopped: Signalled,
    say: Callable[[str], None],
    end: Callable[[], str] = lambda: "",
) -> str:
    """Waits until a TrainJob is complete or has failed, and tells of each state.

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
        UserError: the cluster could not be reached several times in a row.
        Interrupted: this process was interrupted.
    """
    last, misses = "", 0
    while True:
        try:
            state, misses = end() or jobs.state(name), 0
        except UserError:
            misses += 1
            if misses >= 5:
                raise
            state = last
        if state != last:
            say(f"TrainJob {name}: {state.lower()}")
            last = state
        if state in ("Complete", "Failed"):
            return state
        if stopped.wait(every):
            raise Interrupted("the step was interrupted, and its TrainJob is deleted")

"""Runs on Kubeflow Pipelines: the request for one, submitting it, its state, and ending it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from typing import Any

from gpu_pipelines.accelerators.spent import spent_on
from gpu_pipelines.errors import ERROR_PREFIX, UnavailableError, UserError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compiled import EMAILS_OF_VERTEX, parsed_documents, required_pipeline
from gpu_pipelines.targets.earlier import require_resumable
from gpu_pipelines.targets.kubeflow.connection import connect, page_of, quietly, service_errors
from gpu_pipelines.targets.kubeflow.machine_times import NO_PRICES, NOT_COUNTED, times_of_run
from gpu_pipelines.targets.kubeflow.run_failure import base_name, kept_pipeline, reason_of, waits_of
from gpu_pipelines.targets.messages import Outcome
from gpu_pipelines.targets.run_account import RunAccount, StepAccount
from gpu_pipelines.targets.spec_steps import tasks_in
from gpu_pipelines.targets.steps import Observer, StepRecord

#: The default experiment of runs.
DEFAULT_EXPERIMENT = "gpu-pipelines"
#: States of a run and of its tasks (`RuntimeState`), and their names here.
_STATES = {
    "PENDING": "waiting",
    "RUNNING": "running",
    "PAUSED": "waiting",
    "CANCELING": "running",
    "SUCCEEDED": "succeeded",
    "SKIPPED": "not triggered",
    "FAILED": "failed",
    "CANCELED": "cancelled",
}
_ENDS = ("succeeded", "not triggered", "failed", "cancelled")
_MISSES = 5
#: The label of the run's pods in GKE's bill, with the cluster's cost allocation switched on:
#: https://cloud.google.com/kubernetes-engine/docs/how-to/cost-allocations.
RUN_LABEL = "k8s-label/pipeline/runid"


@dataclass(frozen=True)
class KubeflowPipeline:
    """A compiled pipeline for Kubeflow.

    Attributes:
        text: the file.
        spec: its first document, the pipeline.
        platform: its second, settings for Kubernetes; empty if there are none.
    """

    text: str
    spec: dict[str, Any]
    platform: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return str(self.spec["pipelineInfo"]["name"])

    def to_json(self) -> dict[str, Any]:
        """The field `pipeline_spec` of a request of the REST API."""
        platform = {"platform_spec": self.platform} if self.platform else {}
        return {"pipeline_spec": self.spec, **platform}


def parsed_pipeline(text: str, origin: str) -> KubeflowPipeline:
    """The pipeline in a compiled file.

    Args:
        text: content of the file.
        origin: name of the file in messages.

    Raises:
        UserError: it is not a compiled pipeline, or has steps that only Vertex AI runs.
    """
    documents = parsed_documents(text, origin)
    spec = required_pipeline(documents[0] if documents else None, origin, "kubeflow")
    if "custom_job.launcher" in text:
        raise UserError(
            f"{origin} is for Vertex AI: steps of it are CustomJobs.",
            "Give the pipeline from before it was compiled for Vertex AI. In place of a CustomTrainingJobOp of your "
            "own use the component itself and accelerate(task, …).",
        )
    if EMAILS_OF_VERTEX in text:
        raise UserError(
            f"{origin} sends e-mails by a component of Google's that only Vertex AI Pipelines runs.",
            "Use send_message of this project in its place.",
        )
    platform = documents[1] if len(documents) > 1 else {}
    return KubeflowPipeline(text, spec, platform)


@dataclass(frozen=True)
class RunRequest:
    """A run to be submitted.

    Attributes:
        name: its display name.
        pipeline: its pipeline.
        arguments: values of the pipeline's parameters.
        experiment: its experiment.
        pipeline_root: where its artifacts go; None for the cluster's default.
        service_account: Kubernetes service account of its pods; None for the default.
        cache: whether steps may reuse results of earlier runs; None leaves each step its own setting.
    """

    name: str
    pipeline: KubeflowPipeline
    arguments: Mapping[str, Any]
    experiment: str = DEFAULT_EXPERIMENT
    pipeline_root: str | None = None
    service_account: str | None = None
    cache: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """The body of the request, as in the REST API; the experiment by its name."""
        runtime: dict[str, Any] = {"parameters": given(self.arguments)}
        if self.pipeline_root:
            runtime["pipeline_root"] = self.pipeline_root
        body: dict[str, Any] = {"display_name": self.name, "experiment": self.experiment, "runtime_config": runtime}
        if self.service_account:
            body["service_account"] = self.service_account
        # Last, because it is a thousand lines in what a dry run prints.
        return {**body, "pipeline_spec": self.pipeline.to_json()}


def given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that have a value."""
    return {name: value for name, value in arguments.items() if value is not None}


def new_run_name(pipeline: str) -> str:
    """Name of a new run: the pipeline's and the time (UTC)."""
    return f"{pipeline} {datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S}"


def submit(request: RunRequest, settings: ProjectSettings) -> str:
    """Submits a run.

    Returns:
        The id of the run.

    Raises:
        UserError: the service refuses it, or cannot be reached.
    """
    client = connect(settings)
    lost = f"Check whether it has begun: {page_of('runs', settings)}."
    with tempfile.TemporaryDirectory() as folder, quietly():
        path = Path(folder) / "pipeline.yaml"
        path.write_text(request.pipeline.text, encoding="utf-8")
        experiment = experiment_id(client, request.experiment, settings)
        with service_errors("Submitting the pipeline", lost):
            run = client.run_pipeline(
                experiment_id=experiment,
                job_name=request.name,
                pipeline_package_path=str(path),
                params=given(request.arguments),
                pipeline_root=request.pipeline_root,
                enable_caching=request.cache,
                service_account=request.service_account,
            )
    return str(run.run_id)


def experiment_id(client: Any, name: str, settings: ProjectSettings) -> str:
    """The id of an experiment, which is created if there is none with the name.

    Raises:
        UserError: the service cannot be reached, or does not allow it.
    """
    with quietly(), service_errors(f"Looking for the experiment {name!r}"):
        return str(client.create_experiment(name, namespace=settings.kubeflow_namespace).experiment_id)


@dataclass(frozen=True)
class StepState:
    """The state of a step of a run.

    Attributes:
        name: name of the task in the pipeline.
        state: waiting, running, succeeded, not triggered, failed or cancelled.
        seconds: its duration so far.
        error: the service's message; empty if there is none.
    """

    name: str
    state: str
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
        run_id: its id.
        state: as for a step.
        steps: its known steps, in the order in which they began.
        error: the service's message; empty if there is none.
    """

    run_id: str
    state: str
    steps: tuple[StepState, ...] = ()
    error: str = ""

    @property
    def ended(self) -> bool:
        return self.state in _ENDS

    def to_json(self) -> dict[str, Any]:
        """The run as a JSON object."""
        return {**vars(self), "steps": [vars(step) for step in self.steps]}

    def outcome(self, settings: ProjectSettings) -> Outcome:
        """The outcome of the run."""
        page = run_page(self.run_id, settings)
        if self.state == "succeeded":
            return Outcome(self.state, [f"succeeded; its reports and metrics: {page}"], self.to_json())
        failed = next((step for step in self.steps if step.state == "failed"), None)
        if failed is None:
            said = f"the run was {self.state}. {self.error}".rstrip()
        else:
            said = f"{failed.name} failed: {failed.error or self.error or 'its log says why'}"
        return Outcome(self.state, [f"{ERROR_PREFIX}{said}", f"its steps and their logs: {page}"], self.to_json())


def look(client: Any, run_id: str) -> RunState:
    """The state of a run.

    Raises:
        UserError: there is no such run, or the service cannot be reached.
    """
    return _state_of(*_read(client, run_id))


def _read(client: Any, run_id: str) -> tuple[Any, dict[str, Any]]:
    """A run from the service's API, and its pipeline."""
    with service_errors(f"Looking at the run {run_id}", "The run continues; try again later."):
        run = client.get_run(run_id)
        return run, _spec_of(client, run)


def _state_of(run: Any, spec: dict[str, Any]) -> RunState:
    tasks = _tasks_of(spec)
    details = (run.run_details.task_details or []) if run.run_details else []
    found: dict[str, list[Any]] = {}
    for detail in sorted(details, key=_begun):
        name = base_name(str(detail.display_name))
        # Tasks are the nodes of Argo's workflow: drivers, executors, the attempts of each, and what contains them.
        if name in tasks:
            found.setdefault(name, []).append(detail)
    steps = tuple(_step(name, nodes) for name, nodes in found.items())
    return RunState(run.run_id, _state(run.state), steps, _message(run.error))


def _spec_of(client: Any, run: Any) -> dict[str, Any]:
    """The pipeline of a run, with settings for Kubernetes; a run of an uploaded version has only its id."""
    spec = run.pipeline_spec
    reference = run.pipeline_version_reference
    if not spec and reference:
        from kfp_server_api import ApiException

        try:
            spec = client.get_pipeline_version(reference.pipeline_id, reference.pipeline_version_id).pipeline_spec
        except ApiException as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            # The version has been deleted.
            spec = kept_pipeline(client, run.run_id)
    return spec or {}


def _tasks_of(spec: dict[str, Any]) -> set[str]:
    """Names of the tasks of a run's pipeline, including those within conditions and loops."""
    return {name for name, _ in tasks_in(spec.get("pipeline_spec", spec))}


def follow(run_id: str, settings: ProjectSettings, observer: Observer, every: float) -> RunState:
    """Waits for the end of a run and shows it.

    Args:
        run_id: its id.
        settings: address and namespace.
        observer: gets the beginning and end of steps, and messages about pods that do not start.
        every: seconds between two reads.

    Raises:
        UserError: there is no such run, or the service could not be reached several times in a row.
    """
    client: Any = None
    began, ended, misses, waits = set[str](), dict[str, StepState](), 0, dict[str, str]()
    while True:
        try:
            client = client or connect(settings)
            found, spec = _read(client, run_id)
            run, misses = _state_of(found, spec), 0
        except UnavailableError as error:
            misses += 1
            # If nothing has answered yet and nobody listens, the address is wrong or there is no port-forward.
            if misses >= _MISSES or (client is None and not error.status):
                raise
            time.sleep(every)
            continue
        for step in run.steps:
            if step.state not in ("waiting", "not triggered") and step.name not in began:
                began.add(step.name)
                observer.step_began(step.name)
            if step.state in _ENDS and step.name not in ended:
                ended[step.name] = _with_reason(client, run_id, step)
                observer.step_ended(StepRecord(step.name, step.state, step.seconds, message=ended[step.name].error))
        before, waits = waits, waits_of(client, run_id) if _has_pod_that_waits(found) else {}
        for name, why in waits.items():
            if why != before.get(name):
                observer.step_said(name, f"its pod does not start: {why}")
        if run.ended:
            return replace(run, steps=tuple(ended.get(step.name, step) for step in run.steps))
        time.sleep(every)


def _has_pod_that_waits(run: Any) -> bool:
    details = (run.run_details.task_details or []) if run.run_details else []
    return any(detail.state == "PENDING" for detail in details)


def _with_reason(client: Any, run_id: str, step: StepState) -> StepState:
    return replace(step, error=reason_of(client, run_id, step.name)) if step.state == "failed" else step


def terminate(run_id: str, settings: ProjectSettings) -> None:
    """Ends a run and its running steps.

    Raises:
        UserError: there is no such run, or it has ended.
    """
    client = connect(settings)
    with service_errors(f"Cancelling the run {run_id}"):
        client.terminate_run(run_id)


def account(run_id: str, settings: ProjectSettings) -> RunAccount:
    """The state and the cost of a run.

    Args:
        run_id: its id.
        settings: address and namespace; the region of the cluster, and the table of billing export.

    Raises:
        UserError: there is no such run, or the service cannot be reached.
    """
    client = connect(settings)
    run, spec = _read(client, run_id)
    state = _state_of(run, spec)
    seconds = {step.name: step.seconds for step in state.steps if step.seconds}
    spent = spent_on(times_of_run(client, run_id, spec, seconds, settings.region or ""), NOT_COUNTED)
    if not settings.region:
        spent = replace(spent, note=NO_PRICES)
    failed = next((step for step in state.steps if step.state == "failed"), None)
    found = RunAccount(
        run=run_id,
        target="kubeflow",
        state=state.state,
        steps=[StepAccount(step.name, step.state, step.seconds) for step in state.steps],
        spent=spent,
        began=_time(run.created_at),
        ended=(_time(run.finished_at) or datetime.now(timezone.utc)) if state.ended else None,
        error=f"{failed.name} failed: {failed.error or state.error}" if failed else state.error,
        page=run_page(run_id, settings),
    )
    return found.with_bill(RUN_LABEL, run_id, settings)


def require_retriable(run_id: str, settings: ProjectSettings) -> None:
    """Checks that the service can start the failed steps of a run again.

    Raises:
        UserError: it is running, has succeeded, or cannot be read.
    """
    run = look(connect(settings), run_id)
    require_resumable(run_id, run.state, run.ended)


def retry(run_id: str, settings: ProjectSettings) -> None:
    """Starts the failed steps of a run again.

    Raises:
        UserError: the service refuses it, or cannot be reached.
    """
    client = connect(settings)
    lost = f"Check whether it continues: {run_page(run_id, settings)}."
    with service_errors(f"Beginning the failed steps of {run_id} again", lost):
        # kfp.Client has no method for it.
        client._run_api.run_service_retry_run(run_id)


def run_page(run_id: str, settings: ProjectSettings) -> str:
    """The page of a run in the user interface of Kubeflow Pipelines."""
    return page_of(f"runs/details/{run_id}", settings)


def _step(name: str, nodes: Sequence[Any]) -> StepState:
    """A step, from the node of its task and those of the task's attempts."""
    task = next((node for node in nodes if node.display_name == name), nodes[-1])
    began, ended = _time(task.start_time), _time(task.end_time)
    seconds = max(0.0, (ended - began).total_seconds()) if began and ended else 0.0
    return StepState(name, _state(task.state), seconds, _message(task.error))


def _begun(detail: Any) -> tuple[bool, str, str]:
    """Sorts tasks by their beginning; those that have not begun come last."""
    began = _time(detail.start_time)
    return began is None, began.isoformat() if began else "", str(detail.display_name)


def _time(time: datetime | None) -> datetime | None:
    """A time; None for 1970, which the service gives for no time."""
    return time if time and time.year > 1970 else None


def _state(state: str | None) -> str:
    return _STATES.get(str(state), "waiting")


def _message(error: Any) -> str:
    return str(error.message or "") if error else ""

"""The state of a run on Kubeflow Pipelines, as its service tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

from gpu_pipelines.errors import ERROR_PREFIX
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.kubeflow.connection import page_of, service_errors
from gpu_pipelines.targets.kubeflow.runs.failure import base_name, kept_pipeline
from gpu_pipelines.targets.messages import Outcome
from gpu_pipelines.targets.spec_steps import tasks_in

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
#: The states in which nothing follows any more.
ENDS = ("succeeded", "not triggered", "failed", "cancelled")


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
        return self.state in ENDS

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
    return state_of(*read_run(client, run_id))


def read_run(client: Any, run_id: str) -> tuple[Any, dict[str, Any]]:
    """A run from the service's API, and its pipeline."""
    with service_errors(f"Looking at the run {run_id}", "The run continues; try again later."):
        run = client.get_run(run_id)
        return run, _spec_of(client, run)


def state_of(run: Any, spec: dict[str, Any]) -> RunState:
    """The state of a run.

    Args:
        run: from the service's API.
        spec: its pipeline.
    """
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


def run_page(run_id: str, settings: ProjectSettings) -> str:
    """The page of a run in the user interface of Kubeflow Pipelines."""
    return page_of(f"runs/details/{run_id}", settings)


def _step(name: str, nodes: Sequence[Any]) -> StepState:
    """A step, from the node of its task and those of the task's attempts."""
    task = next((node for node in nodes if node.display_name == name), nodes[-1])
    began, ended = time_of(task.start_time), time_of(task.end_time)
    seconds = max(0.0, (ended - began).total_seconds()) if began and ended else 0.0
    return StepState(name, _state(task.state), seconds, _message(task.error))


def _begun(detail: Any) -> tuple[bool, str, str]:
    """Sorts tasks by their beginning; those that have not begun come last."""
    began = time_of(detail.start_time)
    return began is None, began.isoformat() if began else "", str(detail.display_name)


def time_of(time: datetime | None) -> datetime | None:
    """A time; None for 1970, which the service gives for no time."""
    return time if time and time.year > 1970 else None


def _state(state: str | None) -> str:
    return _STATES.get(str(state), "waiting")


def _message(error: Any) -> str:
    return str(error.message or "") if error else ""

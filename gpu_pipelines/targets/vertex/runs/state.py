"""The state of a run on Vertex AI, read from the service's `PipelineJob`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_pipelines.targets.compiled import step_components, without_turns

#: Final states of a run, and their names here.
RUN_ENDS = {
    "PIPELINE_STATE_SUCCEEDED": "succeeded",
    "PIPELINE_STATE_FAILED": "failed",
    "PIPELINE_STATE_CANCELLED": "cancelled",
}
#: States of a step (`PipelineTaskDetail.State`), and their names here.
STEP_STATES = {
    "PENDING": "waiting",
    "RUNNING": "running",
    "CANCEL_PENDING": "running",
    "CANCELLING": "running",
    "SUCCEEDED": "succeeded",
    "CANCELLED": "cancelled",
    "FAILED": "failed",
    "SKIPPED": "reused",
    "NOT_TRIGGERED": "not triggered",
}
_CUSTOM_JOB = re.compile(r"projects/[^/]+/locations/[^/]+/customJobs/[0-9]+")


@dataclass(frozen=True)
class StepState:
    """The state of a step of a run.

    Attributes:
        name: name of the task in the pipeline; in a loop, the name of the turn.
        task: name of the task in the pipeline.
        state: waiting, running, succeeded, reused, failed, cancelled or not triggered.
        jobs: full names of its custom jobs.
        launched: those of them that a launcher in the step's container created.
        seconds: its duration so far.
        error: the service's message; empty if there is none.
    """

    name: str
    task: str
    state: str
    jobs: tuple[str, ...] = ()
    launched: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """The step as a JSON object."""
        return {
            **vars(self),
            "jobs": list(self.jobs),
            "launched": list(self.launched),
            "seconds": round(self.seconds, 1),
        }


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
        name: full name of the job.
        state: succeeded, failed or cancelled; otherwise the service's word for it, in lower case.
        steps: its known steps.
        error: the service's message; empty if there is none.
    """

    name: str
    state: str
    steps: tuple[StepState, ...]
    error: str = ""

    @property
    def ended(self) -> bool:
        return self.state in RUN_ENDS.values()

    def to_json(self) -> dict[str, Any]:
        """The run as a JSON object."""
        return {
            "name": self.name,
            "state": self.state,
            "steps": [step.to_json() for step in self.steps],
            "error": self.error,
        }


def state_of(job: Any) -> RunState:
    """The state of a `PipelineJob`."""
    names = step_components(job.pipeline_spec).keys()
    details = [each for each in job.job_detail.task_details if each.parent_task_id]
    details = [each for each in details if without_turns(each.task_name) in names]
    called = _names_of(details)
    state = job.state.name
    run = RunState(
        name=job.name,
        state=RUN_ENDS.get(state, state.removeprefix("PIPELINE_STATE_").lower()),
        steps=tuple(_step(detail, called[detail.task_id]) for detail in sorted(details, key=_begun)),
        error=job.error.message,
    )
    return replace(run, steps=tuple(map(_never_begun, run.steps))) if run.ended else run


def _never_begun(step: StepState) -> StepState:
    """A step of a run that has ended: the service does not update a step whose branch was not taken."""
    return replace(step, state="not triggered") if step.state == "waiting" else step


def _names_of(details: Sequence[Any]) -> dict[int, str]:
    """The name of each, by its id. Turns of one name get numbers in order of time, and keep them."""
    times: Counter[str] = Counter()
    found = {}
    for detail in sorted(details, key=_came):
        name = detail.task_name
        times[name] += 1
        found[detail.task_id] = name if times[name] == 1 else f"{name} #{times[name]}"
    return found


def _came(detail: Any) -> tuple[bool, float, int]:
    came = detail.create_time or detail.start_time
    return not came, came.timestamp() if came else 0.0, detail.task_id


def _begun(detail: Any) -> tuple[bool, float, str]:
    """Sorts steps by their beginning; those that have not begun come last, by name."""
    began = detail.start_time
    return not began, began.timestamp() if began else 0.0, detail.task_name


def _step(detail: Any, name: str) -> StepState:
    seconds = 0.0
    if detail.start_time and detail.end_time:
        seconds = (detail.end_time - detail.start_time).total_seconds()
    container, launched = detail.executor_detail.container_detail, _launched(detail)
    containers = filter(None, [*container.failed_main_jobs, container.main_job])
    return StepState(
        name=name,
        task=without_turns(detail.task_name),
        state=STEP_STATES.get(detail.state.name, "waiting"),
        jobs=tuple(dict.fromkeys([*containers, *launched])),
        launched=launched,
        seconds=seconds,
        error=detail.error.message,
    )


def _launched(detail: Any) -> tuple[str, ...]:
    """The custom jobs that a launcher in a step's container created, as far as it has reported them."""
    told = detail.execution.metadata.get("output:gcp_resources") if detail.execution.metadata else None
    resources = json.loads(told).get("resources", []) if told else []
    return tuple(match[0] for item in resources if (match := _CUSTOM_JOB.search(str(item.get("resourceUri", "")))))

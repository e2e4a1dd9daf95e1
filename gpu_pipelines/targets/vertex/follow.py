"""A run on Vertex AI as it goes: the state of each step and its log lines, until the end."""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.connection import REQUEST_SECONDS, pipeline_service, service_errors, tried_again
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compiled import step_components
from gpu_pipelines.targets.local.log import ExecutorLines, Observer, StepRecord
from gpu_pipelines.targets.vertex.launched_jobs import LaunchedJobs
from gpu_pipelines.targets.vertex.logs import JobLogs, LogLine

#: Lines of a step's log that are kept to be shown if it fails.
LINES_KEPT = 12
#: How often the log is read again after the end, and at most how many seconds apart: lines arrive late.
_READINGS_AFTER_THE_END, _UNTIL_READ_AGAIN = 2, 5.0

#: States of a run that are its end, and what they are called here.
_RUN_ENDS = {
    "PIPELINE_STATE_SUCCEEDED": "succeeded",
    "PIPELINE_STATE_FAILED": "failed",
    "PIPELINE_STATE_CANCELLED": "cancelled",
}
#: States of a step (`PipelineTaskDetail.State`), and what they are called here.
_STEP_STATES = {
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
_UNFINISHED = ("waiting", "running")


@dataclass(frozen=True)
class StepState:
    """How far a step of a run is.

    Attributes:
        name: name of the task in the pipeline.
        state: waiting, running, succeeded, reused, failed, cancelled or not triggered.
        jobs: full names of the custom jobs that it runs as.
        seconds: how long it has run.
        error: the service's message; empty if there is none.
    """

    name: str
    state: str
    jobs: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """The step as a JSON object."""
        return {**vars(self), "jobs": list(self.jobs), "seconds": round(self.seconds, 1)}


@dataclass(frozen=True)
class RunState:
    """How far a run is.

    Attributes:
        name: full name of the job.
        state: succeeded, failed or cancelled; otherwise the service's word for it, in lower case.
        steps: its steps that are known yet.
        error: the service's message; empty if there is none.
    """

    name: str
    state: str
    steps: tuple[StepState, ...]
    error: str = ""

    @property
    def ended(self) -> bool:
        return self.state in _RUN_ENDS.values()

    def to_json(self) -> dict[str, Any]:
        """The run as a JSON object."""
        return {
            "name": self.name,
            "state": self.state,
            "steps": [step.to_json() for step in self.steps],
            "error": self.error,
        }


@dataclass
class Followed:
    """A run that was followed to its end.

    Attributes:
        run: its last state.
        last_lines: the last lines of each step's log, by the step's name.
        messages: what a step printed last after `error: `, by the step's name.
    """

    run: RunState
    last_lines: dict[str, list[str]] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)


def follow(
    name: str, settings: ProjectSettings, observer: Observer, every: float, warn: Callable[[str], None]
) -> Followed:
    """Waits for the end of a run and tells how it goes.

    Args:
        name: full name of the job.
        settings: project and region.
        observer: is told of steps and of their lines.
        every: seconds between two looks.
        warn: is told, once, if the log cannot be read; the run is followed without it.

    Raises:
        UserError: there is no such run, or the service cannot be reached.
    """
    client, launched = pipeline_service(settings), LaunchedJobs(settings)
    steps = _Steps(observer, _LogReader(str(settings.project), warn))
    while True:
        job = _read(client, name)
        run = launched.added_to(_state(job), job)
        steps.look(run)
        if run.ended:
            break
        time.sleep(every)
    for _ in range(_READINGS_AFTER_THE_END):
        time.sleep(min(every, _UNTIL_READ_AGAIN))
        steps.read_lines(run)
    return Followed(run, steps.last_lines(), steps.messages())


class _LogReader:
    """The log, until it cannot be read."""

    def __init__(self, project: str, warn: Callable[[str], None]) -> None:
        self._logs: JobLogs | None = JobLogs(project)
        self._warn = warn

    def new_lines(self, step_by_job: Mapping[str, str]) -> Iterator[tuple[str, LogLine]]:
        """Steps and their new lines."""
        if self._logs is None:
            return
        try:
            with service_errors("Reading the log"):
                found = self._logs.new_lines(step_by_job)
        except UserError as error:
            self._logs = None
            self._warn(f"{error.problem} The steps are shown without their lines.")
            return
        yield from ((step_by_job[line.job], line) for line in found)


class _Steps:
    """Tells an observer what is new since the last look."""

    def __init__(self, observer: Observer, logs: _LogReader) -> None:
        self._observer, self._logs = observer, logs
        self._records: dict[str, StepRecord] = {}
        self._ended: set[str] = set()
        self._lines: dict[str, deque[str]] = {}
        # By step and machine: what one machine says goes over several lines, those of others between them.
        self._executors: dict[tuple[str, str], ExecutorLines] = {}
        self._speakers: dict[tuple[str, str], StepRecord] = {}

    def look(self, run: RunState) -> None:
        """Tells of each step that it began, of its lines, and that it ended."""
        lines = self._new_lines(run)
        for step in run.steps:
            if step.state != "waiting" and step.name not in self._records:
                self._records[step.name] = StepRecord(step.name)
                if step.state in ("running", "succeeded", "failed"):
                    self._observer.step_began(step.name)
            self._say(step.name, lines.get(step.name, []))
            if step.state not in _UNFINISHED and step.name not in self._ended:
                self._ended.add(step.name)
                record = self._records[step.name]
                record.status, record.seconds = step.state, step.seconds
                self._observer.step_ended(record)

    def read_lines(self, run: RunState) -> None:
        """Tells of new lines alone."""
        for step, lines in self._new_lines(run).items():
            self._say(step, lines)

    def _new_lines(self, run: RunState) -> dict[str, list[LogLine]]:
        step_by_job = {job.rpartition("/")[2]: step.name for step in run.steps for job in step.jobs}
        found: dict[str, list[LogLine]] = {}
        for step, line in self._logs.new_lines(step_by_job):
            found.setdefault(step, []).append(line)
        return found

    def _say(self, step: str, lines: Sequence[LogLine]) -> None:
        for line in lines:
            speaker = (step, line.machine)
            if self._executors.setdefault(speaker, ExecutorLines()).include(line.text):
                continue
            self._speakers.setdefault(speaker, StepRecord(step)).said(line.text)
            self._lines.setdefault(step, deque(maxlen=LINES_KEPT)).append(line.shown)
            self._observer.step_said(step, line.shown)

    def last_lines(self) -> dict[str, list[str]]:
        return {step: list(lines) for step, lines in self._lines.items()}

    def messages(self) -> dict[str, str]:
        told: dict[str, str] = {}
        for (step, _), record in self._speakers.items():
            if record.message:
                told.setdefault(step, record.message)
        return told


def _read(client: Any, name: str) -> Any:
    with service_errors(f"Looking at {name.rpartition('/')[2]}", "The run goes on; try again later."):
        return client.get_pipeline_job(name=name, timeout=REQUEST_SECONDS, retry=tried_again())


def _state(job: Any) -> RunState:
    names = step_components(job.pipeline_spec).keys()
    details = [detail for detail in job.job_detail.task_details if detail.task_name in names and detail.parent_task_id]
    state = job.state.name
    return RunState(
        name=job.name,
        state=_RUN_ENDS.get(state, state.removeprefix("PIPELINE_STATE_").lower()),
        steps=tuple(_step(detail) for detail in sorted(details, key=_begun)),
        error=job.error.message,
    )


def _begun(detail: Any) -> tuple[bool, float, str]:
    """Sorts steps by when they began; those that have not come last, by name."""
    began = detail.start_time
    return not began, began.timestamp() if began else 0.0, detail.task_name


def _step(detail: Any) -> StepState:
    seconds = 0.0
    if detail.start_time and detail.end_time:
        seconds = (detail.end_time - detail.start_time).total_seconds()
    return StepState(
        name=detail.task_name,
        state=_STEP_STATES.get(detail.state.name, "waiting"),
        jobs=_jobs(detail),
        seconds=seconds,
        error=detail.error.message,
    )


def _jobs(detail: Any) -> tuple[str, ...]:
    """The custom jobs of a step: that of its container, and that which GCPC's launcher in the container has created."""
    found = []
    container = detail.executor_detail.container_detail
    found += [*container.failed_main_jobs, container.main_job]
    told = detail.execution.metadata.get("output:gcp_resources") if detail.execution.metadata else None
    if told:
        resources = json.loads(told).get("resources", [])
        found += [match[0] for item in resources if (match := _CUSTOM_JOB.search(str(item.get("resourceUri", ""))))]
    return tuple(job for job in dict.fromkeys(found) if job)


_CUSTOM_JOB = re.compile(r"projects/[^/]+/locations/[^/]+/customJobs/[0-9]+")

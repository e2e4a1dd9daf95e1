"""A run on Vertex AI while it runs: the state of each step and its log lines, until the end."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_pipelines.errors import ERROR_PREFIX, AccessDeniedError, UserError
from gpu_pipelines.google_cloud.connection import (
    REQUEST_SECONDS,
    job_service,
    pipeline_service,
    service_errors,
    tried_again,
    with_label,
)
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.fallback.tries import Choice
from gpu_pipelines.targets.messages import Outcome
from gpu_pipelines.targets.steps import ExecutorLines, Observer, StepRecord
from gpu_pipelines.targets.vertex.console import custom_job_page, run_page
from gpu_pipelines.targets.vertex.logs import JobLogs, LogLine
from gpu_pipelines.targets.vertex.placement.fallback import choices_in
from gpu_pipelines.targets.vertex.runs.machine_times import RUN_LABEL, launchers
from gpu_pipelines.targets.vertex.runs.state import RunState, StepState, state_of

#: Lines of a step's log that are kept, to show them if it fails.
LINES_KEPT = 12
#: How often the log is read again after the end, and the most seconds in between: lines arrive late.
_READINGS_AFTER_THE_END, _UNTIL_READ_AGAIN = 2, 5.0

_UNFINISHED = ("waiting", "running")


def follow(
    name: str, settings: ProjectSettings, observer: Observer, every: float, warn: Callable[[str], None]
) -> Outcome:
    """Waits for the end of a run and shows it.

    Args:
        name: full name of the job.
        settings: project and region.
        observer: gets the events of steps and their lines.
        every: seconds between two reads.
        warn: called once if the log cannot be read; the run is followed without it.

    Raises:
        UserError: there is no such run, or the service cannot be reached.
    """
    client, launched = pipeline_service(settings), _LaunchedJobs(settings)
    logs = JobLogs(str(settings.project), lambda why: warn(f"{why} The steps are shown without their lines."))
    steps = _Steps(observer, logs)
    while True:
        job = _read(client, name)
        run = launched.added_to(state_of(job), job)
        steps.look(run)
        if run.ended:
            break
        time.sleep(every)
    for _ in range(_READINGS_AFTER_THE_END):
        time.sleep(min(every, _UNTIL_READ_AGAIN))
        steps.read_lines(run)
    return steps.outcome(run)


class _Steps:
    """Informs an observer of what is new since the last read."""

    def __init__(self, observer: Observer, logs: JobLogs) -> None:
        self._observer, self._logs = observer, logs
        self._records: dict[str, StepRecord] = {}
        self._ended: set[str] = set()
        # By step and job: the launcher of a job reports that it failed after the job has given the reason.
        self._lines: dict[tuple[str, str], deque[str]] = {}
        # By step, job and machine: a message of one machine has several lines, with those of others in between.
        self._executors: dict[tuple[str, str, str], ExecutorLines] = {}
        self._speakers: dict[tuple[str, str, str], StepRecord] = {}
        # The job of each step that last printed an error.
        self._failed: dict[str, str] = {}

    def look(self, run: RunState) -> None:
        """Reports for each step its beginning, its lines, and its end."""
        lines = self._new_lines(run)
        for step in run.steps:
            # The job of a step may print lines before the run shows the step as running.
            said = lines.get(step.name, [])
            if (said or step.state != "waiting") and step.name not in self._records:
                self._records[step.name] = StepRecord(step.name)
                if said or step.state in ("running", "succeeded", "failed"):
                    self._observer.step_began(step.name)
            self._say(step.name, said)
            if step.state not in _UNFINISHED and step.name not in self._ended:
                self._ended.add(step.name)
                record = self._records[step.name]
                record.status, record.seconds = step.state, step.seconds
                self._observer.step_ended(record)

    def read_lines(self, run: RunState) -> None:
        """Reports only new lines."""
        for step, lines in self._new_lines(run).items():
            self._say(step, lines)

    def _new_lines(self, run: RunState) -> dict[str, list[LogLine]]:
        step_by_job = {job.rpartition("/")[2]: step.name for step in run.steps for job in step.jobs}
        found: dict[str, list[LogLine]] = {}
        for line in self._logs.new_lines(step_by_job):
            found.setdefault(step_by_job[line.job], []).append(line)
        return found

    def _say(self, step: str, lines: Sequence[LogLine]) -> None:
        for line in lines:
            speaker = (step, line.job, line.machine)
            if self._executors.setdefault(speaker, ExecutorLines()).include(line.text):
                continue
            self._speakers.setdefault(speaker, StepRecord(step)).said(line.text)
            self._lines.setdefault((step, line.job), deque(maxlen=LINES_KEPT)).append(line.shown)
            if line.text.startswith(ERROR_PREFIX):
                self._failed[step] = line.job
            self._observer.step_said(step, line.shown)

    def outcome(self, run: RunState) -> Outcome:
        """The outcome of a run."""
        if run.state == "succeeded":
            lines = [f"succeeded; its reports and metrics: {run_page(run.name)}"]
        else:
            lines = list(self._failure(run))
        return Outcome(run.state, lines, run.to_json())

    def _failure(self, run: RunState) -> Iterator[str]:
        """The step that failed, the service's message, and the end of its log."""
        failed = next((step for step in run.steps if step.state == "failed"), None)
        if failed is None:
            yield f"{ERROR_PREFIX}{run.name.rpartition('/')[2]} was {run.state}. {run.error}".rstrip()
            yield f"console: {run_page(run.name)}"
            return
        # The last output of one of its machines after `error: `.
        job = self._failed.get(failed.name) or self._last_heard(failed)
        speaking = (record for (step, of, _), record in self._speakers.items() if (step, of) == (failed.name, job))
        own = [record.message for record in speaking if record.message]
        said = own[0] if own else failed.error or run.error
        yield f"{ERROR_PREFIX}{failed.name} failed: {said}"
        if failed.error and failed.error != said:
            yield f"Vertex AI says: {failed.error}"
        if lines := self._lines.get((failed.name, job)):
            yield "its log ends:"
            yield from (f"  {line}" for line in lines)
        yield f"console: {run_page(run.name)}"
        yield from (f"job: {custom_job_page(job)}" for job in failed.jobs)

    def _last_heard(self, step: StepState) -> str:
        """The newest job of a step that printed anything: a launched one, if there is one."""
        heard = [job for name, job in self._lines if name == step.name]
        launched = {name.rpartition("/")[2] for name in step.launched}
        return next(reversed([each for each in heard if each in launched] or heard), "")


def _read(client: Any, name: str) -> Any:
    with service_errors(f"Looking at {name.rpartition('/')[2]}", "The run continues; try again later."):
        return client.get_pipeline_job(name=name, timeout=REQUEST_SECONDS, retry=tried_again())


class _LaunchedJobs:
    """Searches for the custom jobs that the steps of a run launched, until it has found each.

    A step that is a CustomJob runs as a small container that creates the job and waits for it. The container reports
    the job only with its outputs, after its end. Until then the job is found by its label.

    Args:
        settings: project and region.
    """

    def __init__(self, settings: ProjectSettings) -> None:
        self._settings = settings
        self._jobs: dict[str, list[str]] = {}
        self._may_look = True
        self._of_steps: dict[str, list[Choice]] | None = None

    def added_to(self, run: RunState, job: Any) -> RunState:
        """A run with the jobs that its steps launched.

        Args:
            run: its state.
            job: the same run as the service's `PipelineJob`.
        """
        # A step with choices may launch another job at any time.
        known = self._jobs.keys() - self._choices(job.pipeline_spec).keys()
        running = {step.task for step in run.steps if step.state == "running"} - known
        step_by_name = {name: step for name, step in launchers(job.pipeline_spec).items() if step in running}
        if step_by_name and self._may_look and (label := job.labels.get(RUN_LABEL)):
            choices = self._choices(job.pipeline_spec)
            regions = {each.region for step in step_by_name.values() for each in choices.get(step, [])} - {""}
            for region in {str(self._settings.region)} | regions:
                self._look(label, step_by_name, region)
        turns = Counter(step.task for step in run.steps)
        # Which of several turns a job belongs to is only reported at its end.
        return replace(run, steps=tuple(self._with_job(step) if turns[step.task] == 1 else step for step in run.steps))

    def _with_job(self, step: Any) -> Any:
        launched = [name for name in self._jobs.get(step.task, []) if name not in step.jobs]
        return replace(step, jobs=(*step.jobs, *launched), launched=(*step.launched, *launched))

    def _choices(self, spec: Any) -> dict[str, list[Choice]]:
        """The choices of the run's steps that have more than one choice of machines."""
        if self._of_steps is None:
            self._of_steps = {step: choices for step, (choices, _) in choices_in(spec).items()}
        return self._of_steps

    def _look(self, label: str, step_by_name: Mapping[str, str], region: str) -> None:
        where = replace(self._settings, region=region)
        try:
            with service_errors("Looking for the jobs of the run"):
                for custom_job in with_label(job_service(where).list_custom_jobs, where, RUN_LABEL, label):
                    if custom_job.display_name in step_by_name:
                        found = self._jobs.setdefault(step_by_name[custom_job.display_name], [])
                        found += [custom_job.name] if custom_job.name not in found else []
        except AccessDeniedError:
            # The lines of these steps then come at their end.
            self._may_look = False
        except UserError:  # a service that does not answer, or limits requests, answers at the next try
            pass

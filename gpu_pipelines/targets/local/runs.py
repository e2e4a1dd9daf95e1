"""A run on this machine: running it, and recording it while it runs."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.dag import PIPELINES
from gpu_pipelines.dag.placement import LOOKING_STEPS, PREDICTS, PREPARES, RUNS_SCRIPT, TRAINS, TUNES
from gpu_pipelines.errors import (
    RunFailedError,
    UserError,
    first_line,
    is_of_a_full_disk,
)
from gpu_pipelines.targets.steps import StepRecord

if TYPE_CHECKING:
    from gpu_pipelines.targets.local.outputs.left import Left
    from gpu_pipelines.targets.messages import Values
    from gpu_pipelines.targets.runs.continued import GoneOn
    from gpu_pipelines.targets.runs.record import RunRecord
    from gpu_pipelines.targets.steps import Observer

#: The cost of a run on this machine.
NOTHING_TO_PAY = "nothing to pay: it ran on this machine"
#: How KFP's runner says that a step lacks an output that is taken from it.
_NOT_GIVEN = re.compile(r"Tried to get output '([^']*)' from task '([^']*)'")
#: Seconds between two writes of the report of a running run; its page reloads as often.
_SECONDS_BETWEEN_WRITES = 5.0
#: Seconds between two reports while the run continues; steps may end faster.
_SECONDS_BETWEEN_REPORTS = 1.0
#: What an interrupted step does before it ends.
_WHEN_STOPPED = {
    PREPARES: "keeps what is done and ends",
    PREDICTS: "keeps what is done and ends",
    TRAINS: "writes a checkpoint and ends",
    RUNS_SCRIPT: "may write a checkpoint and ends",
    TUNES: "lets each trial write a checkpoint and ends",
}


@dataclass(frozen=True)
class GoesOn:
    """What a run on this machine reuses of a run elsewhere.

    Attributes:
        name: name of the other run.
        whole: the pipeline with all its steps.
        found: the reused part.
    """

    name: str
    whole: Mapping[str, Any]
    found: GoneOn


@dataclass(frozen=True)
class LocalRequest:
    """A checked request.

    Attributes:
        name: name of the pipeline, as on the command line.
        pipeline: the KFP pipeline, built for this machine.
        values: its parameters.
        accelerator: `cpu:N`, or empty for all GPUs that are here, else two CPU processes.
        spec: the pipeline as KFP compiles it; left out, it is compiled when it is needed.
        resumed: checkpoints of the run that it continues; empty if it continues none.
        resumed_run: the name of that run.
        goes_on: what it reuses of a run elsewhere; None if it continues none.
        of_kubernetes: whether it has settings for Kubernetes, which Vertex AI does not take.
    """

    name: str
    pipeline: Any
    values: Values
    accelerator: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    resumed: str = ""
    resumed_run: str = ""
    goes_on: GoesOn | None = None
    of_kubernetes: bool = False

    @cached_property
    def compiled_spec(self) -> Mapping[str, Any]:
        """The pipeline as KFP compiles it."""
        from gpu_pipelines.targets.compiled import compiled, documents_of

        return self.spec or dict(documents_of(compiled(self.pipeline))[0])

    @property
    def tracking(self) -> str:
        """The tracker; the steps of a user's own pipeline get it as an input, whatever its parameters are."""
        ours = self.name.replace("-", "_") in PIPELINES
        return str(self.values.arguments.get("tracking", "")) if ours else ""

    @property
    def dependencies(self) -> dict[str, list[str]]:
        """The tasks that each task needs, by task, in a possible order; see `without_early_checks`.

        For a run that continues another one this is the whole pipeline, including the reused steps.
        """
        from gpu_pipelines.targets.compiled import steps_of

        return without_early_checks(steps_of(self.goes_on.whole if self.goes_on else self.compiled_spec))


def without_early_checks(steps: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Steps with those that each needs, where a check counts only for the steps right after it.

    Every step needs the check of the request; showing that for each would only clutter the picture.
    """

    def is_news(need: str, others: Sequence[str]) -> bool:
        return need not in LOOKING_STEPS or not any(need in steps[other] for other in others)

    return {step: [need for need in needs if is_news(need, needs)] for step, needs in steps.items()}


def run_and_record(
    request: LocalRequest, runs: Path, observer: Observer, *, reuse: bool, cost: str = NOTHING_TO_PAY
) -> RunRecord:
    """Runs a pipeline and waits for it; leaves its record, its report and its outcome in the directory of runs.

    Args:
        request: the pipeline and its parameters.
        runs: gets a directory for the run.
        observer: gets the events of the run.
        reuse: skip steps whose inputs have not changed.
        cost: the cost of the run, in words, or where to find it.

    Raises:
        RunFailedError: it ended with an error that is not a step's; the record and the outcome have it.
        UserError: its directory cannot be created.
    """
    from gpu_pipelines.targets.local.outputs.brought import brought_for_report
    from gpu_pipelines.targets.local.runner.processes import end_left_behind
    from gpu_pipelines.targets.local.target import RunPlace, adopt_results, run_locally
    from gpu_pipelines.targets.runs.record import new_run_directory
    from gpu_pipelines.targets.runs.recorded import CACHE

    if request.resumed_run:
        end_left_behind(runs / request.resumed_run)
    if reuse:
        adopt_results(runs, runs / CACHE)
    run_id, directory = new_run_directory(runs, request.name)
    record = _begun(request, run_id, directory, cost)
    watched = _Recorder(record, request, runs, observer)
    try:
        watched.write()
        with watched.live():
            outcome = run_locally(
                request.pipeline,
                request.values.taken,
                RunPlace(directory, runs / CACHE, reuse=reuse, checkpoints=request.resumed),
                watched,
                tracking=request.tracking,
                steps=record.steps,
                unshown=request.goes_on.found.importers if request.goes_on else (),
                stopping=_say_stopping,
            )
        _require_there(directory)
        record.status = outcome.status
        record.artifacts, record.model, record.reason = outcome.artifacts, outcome.model, outcome.reason
        record.outputs = outcome.values
        if request.goes_on is not None:
            record.artifacts = brought_for_report(record.artifacts, directory / "artifacts" / "taken-over")
        _note_what_is_left(record, watched.artifacts())
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        lacks = _without_output(error)
        record.end("interrupted" if interrupted else "failed", "" if interrupted else lacks or first_line(error))
        watched.write()
        if isinstance(error, OSError):
            _require_there(directory)
        if isinstance(error, UserError):
            raise RunFailedError(error.problem, error.remedy) from error
        if not (request.spec and isinstance(error, (ValueError, TypeError, KeyError, NotImplementedError))):
            raise
        told = lacks or f"KFP's local runner cannot continue {request.name}: {error}"
        raise RunFailedError(told, f"Its logs are in {directory / 'logs'}.") from error
    watched.write(is_end=True)
    return record


def _without_output(error: BaseException) -> str:
    """Which step gave no output, where KFP's runner asked for it and says that the task is not there; else empty."""
    if not (lacks := _NOT_GIVEN.match(str(error))):
        return ""
    return f"{lacks[2]} has not given its output {lacks[1]}: a function that returns None, or ends early, gives none."


def _require_there(directory: Path) -> None:
    """Checks that the folder of a run still exists; without it nothing is known about the run.

    Raises:
        RunFailedError: it was removed.
    """
    if not directory.is_dir():
        raise RunFailedError(f"{directory}, the folder of the run, was removed while it ran.", "Run it again.")


def _begun(request: LocalRequest, run_id: str, directory: Path, cost: str) -> RunRecord:
    """The record of a run that begins, with the steps that it reuses."""
    from gpu_pipelines.artifacts.checkpoint_lock import ticks_at_start
    from gpu_pipelines.targets.runs.record import RunRecord

    record = RunRecord(
        run_id=run_id,
        pipeline=request.name,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        parameters=dict(request.values.arguments),
        accelerator=request.accelerator,
        dependencies=request.dependencies,
        directory=directory,
        process_ticks=ticks_at_start(os.getpid()),
        checkpoints=request.resumed or str(directory.absolute() / "artifacts" / "checkpoints"),
        cost=cost,
        resumes=request.resumed_run,
    )
    if request.goes_on is not None:
        found = request.goes_on.found
        record.resumes, record.trainings = request.goes_on.name, dict(found.trainings)
        record.steps += [StepRecord(name, status="reused") for name in found.taken_over]
    return record


class _Recorder:
    """Writes record and report of a run while it runs, and informs another observer.

    Args:
        record: record of the run, to which its steps are added elsewhere.
        request: request of the run.
        runs: directory of runs, whose page lists them all.
        observer: the other one.
    """

    def __init__(self, record: RunRecord, request: LocalRequest, runs: Path, observer: Observer) -> None:
        self._record, self._request, self._runs, self._observer = record, request, runs, observer
        self._started = time.monotonic()
        self._report_due = 0.0
        self._said: dict[str, str] = {}
        self._lock = threading.RLock()

    @contextmanager
    def live(self) -> Iterator[None]:
        """Also writes it every few seconds, as long as the context lasts: a step may take hours."""
        ended = threading.Event()

        def write() -> None:
            while not ended.wait(_SECONDS_BETWEEN_WRITES):
                self.write()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def artifacts(self) -> list[Left]:
        """The artifacts that finished steps made, or reused from earlier runs."""
        from gpu_pipelines.targets.local.outputs.left import artifacts_left, note_makers
        from gpu_pipelines.targets.runs.recorded import CACHE

        cache = self._runs / CACHE
        note_makers(self._record.steps, cache, self._runs)
        spec = self._request.compiled_spec
        return list(artifacts_left(self._record.directory, spec, self._record.steps, cache))

    def step_began(self, step: str) -> None:
        self.write()
        self._observer.step_began(step)

    def step_said(self, step: str, line: str) -> None:
        self._said[step] = line
        self._observer.step_said(step, line)

    def step_ended(self, step: StepRecord) -> None:
        from gpu_pipelines.targets.local.outputs.left import complete_artifacts

        complete_artifacts(step)
        self.write()
        self._observer.step_ended(step)

    def write(self, *, is_end: bool = False) -> None:
        """Writes the record, the report and, at the beginning and the end of a run, the page of all runs.

        The report has all steps, so during the run it is not written for each of many short ones. At the end the
        outcome comes right after the record: on a full disk there may be no room for the pages.

        Args:
            is_end: whether a failed write is an error. During the run it is not: the run continues. Pages that cannot
                be written are no error either: the result of the run is known without them.
        """
        from gpu_pipelines.reports.run_report import write_run_report
        from gpu_pipelines.reports.runs_page import write_runs_page
        from gpu_pipelines.targets.local.outputs.left import pages_of
        from gpu_pipelines.targets.runs.record import write_outcome
        from gpu_pipelines.targets.runs.recorded import recorded_runs

        with self._lock, suppress(*(() if is_end else (OSError,))):
            self._record.note_time(self._started)
            is_running, now = self._record.status == "running", time.monotonic()
            is_due = not is_running or now >= self._report_due
            if is_due and not is_end:
                self._record.pages = pages_of(self.artifacts())
            self._save()
            if not is_running:
                write_outcome(self._runs, self._record)
            if not is_due:
                return
            self._report_due = now + _SECONDS_BETWEEN_REPORTS
            try:
                write_run_report(self._record, self._said)
                if is_end or not self._record.steps:
                    write_runs_page(self._runs, recorded_runs(self._runs))
            except OSError as error:
                if is_end:
                    _say_unwritten(self._record, error)

    def _save(self) -> None:
        try:
            self._record.save()
        except OSError as error:
            if self._record.status == "running" or not is_of_a_full_disk(error):
                raise
            for step in self._record.steps:
                if step.status == "failed":
                    step.message = step.message or f"{first_line(error)}: its log may lack its last lines."
            # The record alone has the result of the run; the report can be made again from it.
            self._record.report.unlink(missing_ok=True)
            self._record.save()


def _note_what_is_left(record: RunRecord, artifacts: Sequence[Left]) -> None:
    """Records pages and metrics of the steps of a run.

    Args:
        record: record of the run.
        artifacts: artifacts of its steps.
    """
    from gpu_pipelines.targets.local.outputs.left import finite, metrics_of, pages_of, texts_of

    record.pages, found = pages_of(artifacts), metrics_of(artifacts)
    record.metric_texts = texts_of(artifacts)
    found |= {name: number for name, value in record.outputs.items() if (number := finite(value)) is not None}
    # The last figure of a run that did not finish is arbitrary, such as the number of rows read.
    figures = reversed(found) if record.status == "succeeded" else (name for name in found if name.startswith("test_"))
    key = next(iter(figures), "")
    if evaluation := record.evaluation:
        key = f"test_{evaluation.select_by}"
        # It may have been evaluated by an earlier run.
        scored = evaluation.test["metrics"].items()
        found |= {f"test_{name}": metric["value"] for name, metric in scored if metric["value"] is not None}
    record.metrics, record.key_metric = found, key if key in found else ""


def _say_unwritten(record: RunRecord, error: OSError) -> None:
    """Says that the report of a run, or the page of all runs, is missing; an earlier one would show it as running."""
    with suppress(OSError):
        record.report.unlink(missing_ok=True)
    told = f"warning: the report could not be written: {first_line(error)}; runs open {record.run_id} writes it"
    print(told, file=sys.stderr, flush=True)


def _say_stopping(step: StepRecord | None) -> None:
    """Says at once that a Ctrl-C has arrived, and what takes time now."""
    from gpu_pipelines.targets.local.runner.processes import SECONDS_TO_END

    if step is None:
        return
    doing = _WHEN_STOPPED.get(step.name, "ends")
    told = f"interrupted: {step.name} {doing}, within {SECONDS_TO_END:.0f} s. Ctrl-C again ends it now."
    print(told, file=sys.stderr, flush=True)

"""A run on this machine: run, recorded, and told with what came of it."""

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

from gpu_pipelines.component_interface.parameter import shown_value
from gpu_pipelines.dag import PIPELINES
from gpu_pipelines.dag.placement import LOOKING_STEPS, PREDICTS, PREPARES, RUNS_SCRIPT, TRAINS, TUNES
from gpu_pipelines.errors import (
    ERROR_PREFIX,
    RunFailedError,
    UnavailableError,
    UserError,
    first_line,
    is_of_a_full_disk,
)
from gpu_pipelines.reports.durations import format_seconds
from gpu_pipelines.targets.steps import StepRecord, last_lines
from gpu_pipelines.terminal import Column, Table

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.evaluation import Evaluation
    from gpu_pipelines.targets.going_on import GoneOn
    from gpu_pipelines.targets.local.left import Left
    from gpu_pipelines.targets.messages import Values
    from gpu_pipelines.targets.run_record import RunRecord
    from gpu_pipelines.targets.steps import Observer

LINES_OF_LOG_SHOWN = 12
METRICS_SHOWN = 4
CHARACTERS_SHOWN = 200
_WORD = re.compile(r"[\w.]+")
#: What a step says that opens the path of an artifact in a bucket, which KFP makes of its URI.
_NO_MOUNT = re.compile(r"No such file or directory: '/(gcs|s3|minio)/")
#: What a run on this machine costs.
NOTHING_TO_PAY = "nothing to pay: it ran on this machine"
#: Between two writes of the report of a run that goes on; its page reads itself again as often.
_SECONDS_BETWEEN_WRITES = 5.0
#: As long as the run goes on; steps may end faster than that.
_SECONDS_BETWEEN_REPORTS = 1.0
#: What a step does before it ends when it is interrupted.
_WHEN_STOPPED = {
    PREPARES: "keeps what is done and ends",
    PREDICTS: "keeps what is done and ends",
    TRAINS: "writes a checkpoint and ends",
    RUNS_SCRIPT: "may write a checkpoint and ends",
    TUNES: "lets each trial write a checkpoint and ends",
}


@dataclass(frozen=True)
class GoesOn:
    """What a run on this machine takes of one that was elsewhere.

    Attributes:
        name: that of the other run.
        whole: the pipeline with all its steps.
        found: what it takes over.
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
        spec: the pipeline as KFP compiles it; left out, it is compiled where that is asked for.
        resumed: checkpoints of the run that it continues; empty if it continues none.
        resumed_run: the name of that run.
        goes_on: what it takes of a run elsewhere; None where it goes on from none.
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
        """The tracker; of a pipeline of one's own the steps are told by their inputs, whatever its parameters are."""
        ours = self.name.replace("-", "_") in PIPELINES
        return str(self.values.arguments.get("tracking", "")) if ours else ""

    @property
    def dependencies(self) -> dict[str, list[str]]:
        """For each task the tasks it needs, in an order in which they can run; see `without_early_checks`.

        Of a run that goes on from another one it is the whole pipeline, with what it takes over.
        """
        from gpu_pipelines.targets.compiled import steps_of

        return without_early_checks(steps_of(self.goes_on.whole if self.goes_on else self.compiled_spec))


def without_early_checks(steps: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Steps with those that each needs, of those that check something only the ones right before it.

    Every step needs the check of the request; that each says so is no news to who looks at the picture.
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
        observer: is told how it goes.
        reuse: skip steps whose inputs have not changed.
        cost: what the run costs, in words, or where that stands.

    Raises:
        RunFailedError: it has ended with an error that is no step's; the record and the outcome have it.
        UserError: there can be no directory for it.
    """
    from gpu_pipelines.targets.local.brought import brought_for_report
    from gpu_pipelines.targets.local.processes import end_left_behind
    from gpu_pipelines.targets.local.target import RunPlace, adopt_results, run_locally
    from gpu_pipelines.targets.recorded_runs import CACHE
    from gpu_pipelines.targets.run_record import new_run_directory

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
        record.end("interrupted" if interrupted else "failed", "" if interrupted else first_line(error))
        watched.write()
        if isinstance(error, OSError):
            _require_there(directory)
        if isinstance(error, UserError):
            raise RunFailedError(error.problem, error.remedy) from error
        if not (request.spec and isinstance(error, (ValueError, TypeError, KeyError, NotImplementedError))):
            raise
        told = f"KFP's local runner cannot go on with {request.name}: {error}"
        raise RunFailedError(told, f"Its logs are in {directory / 'logs'}.") from error
    watched.write(is_end=True)
    return record


def _require_there(directory: Path) -> None:
    """Checks that nobody has removed the folder of a run, which nothing can be said of then.

    Raises:
        RunFailedError: somebody has.
    """
    if not directory.is_dir():
        raise RunFailedError(f"{directory}, the folder of the run, was removed while it ran.", "Run it again.")


def _begun(request: LocalRequest, run_id: str, directory: Path, cost: str) -> RunRecord:
    """The record of a run that begins, with the steps that it takes over."""
    from gpu_pipelines.artifacts.checkpoint_lock import ticks_at_start
    from gpu_pipelines.targets.run_record import RunRecord

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
    """Keeps record and report of a run as it goes on, and lets another observer know.

    Args:
        record: the run's, to which its steps are added elsewhere.
        request: what is run.
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
        """Writes it every few seconds as well, as long as the context lasts: a step may take hours."""
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
        """What the steps that have ended have left, or taken from earlier runs."""
        from gpu_pipelines.targets.local.left import artifacts_left, note_makers
        from gpu_pipelines.targets.recorded_runs import CACHE

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
        from gpu_pipelines.targets.local.left import complete_artifacts

        complete_artifacts(step)
        self.write()
        self._observer.step_ended(step)

    def write(self, *, is_end: bool = False) -> None:
        """Writes the record, the report and, at the beginning and the end of a run, the page of all runs.

        The report holds all steps, so on the way it is not written for each of many short ones. At the end the outcome
        comes right after the record: on a full disk there may be no room for the pages.

        Args:
            is_end: whether what cannot be written is an error. On the way it is not: the run itself goes on. Pages that
                cannot be written are none either: what the run has come to is known without them.
        """
        from gpu_pipelines.reports.run_report import write_run_report
        from gpu_pipelines.reports.runs_page import write_runs_page
        from gpu_pipelines.targets.local.left import pages_of
        from gpu_pipelines.targets.recorded_runs import recorded_runs
        from gpu_pipelines.targets.run_record import write_outcome

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
                    step.message = step.message or f"{first_line(error)}: its log may lack what it said last."
            # How the run has ended is known from the record alone; the report can be made of it again.
            self._record.report.unlink(missing_ok=True)
            self._record.save()


def _note_what_is_left(record: RunRecord, artifacts: Sequence[Left]) -> None:
    """Notes pages and metrics that the steps of a run have left.

    Args:
        record: the run's.
        artifacts: those of its steps.
    """
    from gpu_pipelines.targets.local.left import finite, metrics_of, pages_of, texts_of

    record.pages, found = pages_of(artifacts), metrics_of(artifacts)
    record.metric_texts = texts_of(artifacts)
    found |= {name: number for name, value in record.outputs.items() if (number := finite(value)) is not None}
    # The last figure of a run that did not get to its end is any, such as how many rows were read.
    figures = reversed(found) if record.status == "succeeded" else (name for name in found if name.startswith("test_"))
    key = next(iter(figures), "")
    if evaluation := record.evaluation:
        key = f"test_{evaluation.select_by}"
        # It may have been evaluated by an earlier run.
        scored = evaluation.test["metrics"].items()
        found |= {f"test_{name}": metric["value"] for name, metric in scored if metric["value"] is not None}
    record.metrics, record.key_metric = found, key if key in found else ""


def _say_unwritten(record: RunRecord, error: OSError) -> None:
    """Says that there is no report of a run, or no page of all of them; one from the way would say that it runs."""
    with suppress(OSError):
        record.report.unlink(missing_ok=True)
    told = f"warning: the report could not be written: {first_line(error)}; runs open {record.run_id} writes it"
    print(told, file=sys.stderr, flush=True)


def _say_stopping(step: StepRecord | None) -> None:
    """Says at once that a Ctrl-C has arrived, and what takes its time now."""
    from gpu_pipelines.targets.local.processes import SECONDS_TO_END

    if step is None:
        return
    doing = _WHEN_STOPPED.get(step.name, "ends")
    told = f"interrupted: {step.name} {doing}, within {SECONDS_TO_END:.0f} s. Ctrl-C again ends it now."
    print(told, file=sys.stderr, flush=True)


def shown_result(record: RunRecord) -> list[str | Table]:
    """What came of a run, line by line."""
    if record.status != "succeeded":
        return list(_failure(record))
    end = [f"finished in {format_seconds(record.seconds)}", f"report: {record.report}"]
    outputs = [f"{name}: {_short(value)}" for name, value in record.outputs.items()]
    came = [*_evaluation(record), *_version(record)] if record.model else [record.reason] if record.reason else []
    return [*came, *outputs, *end]


def _short(value: Any) -> str:
    """A value on one line."""
    text = " ".join(shown_value(value).split())
    return text if len(text) <= CHARACTERS_SHOWN else f"{text[:CHARACTERS_SHOWN]}…"


def _evaluation(record: RunRecord) -> list[str | Table]:
    from gpu_pipelines.numbers import figure

    evaluation = record.evaluation
    if evaluation is None:
        return []
    # The report has them all.
    asked = [evaluation.select_by, *(word for gate in evaluation.gates for word in _WORD.findall(gate["gate"]))]
    places = {name: place for place, name in reversed(list(enumerate(asked)))}
    metrics = sorted(evaluation.test["metrics"], key=lambda name: places.get(name, len(asked)))[:METRICS_SHOWN]
    table = Table("checkpoint", "", *(Column.number(name, spare=place) for place, name in enumerate(metrics)))
    for scored in evaluation.checkpoints_shown:
        values = [figure(scored["val"].get(name)) for name in metrics]
        table.add_row(scored["name"], "val", *values, style="bold" if scored["name"] == evaluation.best else "")
    test = [figure(evaluation.test["metrics"][name]["value"]) for name in metrics]
    table.add_row(evaluation.best, "test", *test, style="bold")
    return [
        table,
        *_benchmarks(evaluation),
        *(f"{'✓' if gate['passed'] else '✗'} {gate['gate']}: {gate['why']}" for gate in evaluation.gates),
    ]


def _benchmarks(evaluation: Evaluation) -> list[str]:
    """A line with the first metric of each benchmark of the best checkpoint; the report has all."""
    from gpu_pipelines.artifacts.benchmark_results import first_metrics
    from gpu_pipelines.numbers import figure

    if evaluation.benchmarks is None:
        return []
    metrics = evaluation.benchmarks["checkpoints"][0]["metrics"]
    shown = "  ".join(f"{name} {figure(metrics[name]['value'])}" for name in first_metrics(evaluation.benchmarks))
    return [f"benchmarks of {evaluation.best}: {shown}"]


def _version(record: RunRecord) -> list[str]:
    done = "registered" if record.added else "nothing was registered: the same model is"
    aliases = " and ".join(record.model["aliases"])
    place = f" in {record.parameters['registry']}" if "registry" in record.parameters else ""
    version = f"{done} {record.model['model_name']} version {int(record.model['version'])} as {aliases}{place}"
    return [version, *([] if record.is_champion else [record.instead])]


def _failure(record: RunRecord) -> Iterator[str]:
    if record.status == "interrupted":
        # What these have done is kept and found without being asked for. Of a run that resumed one it was asked for.
        goes_on_itself = record.steps and record.steps[-1].name in (PREPARES, PREDICTS)
        yield f"interrupted; logs: {record.directory / 'logs'}"
        yield f"run the same command {'again' if goes_on_itself or record.resumes else 'with --resume'} to continue"
        return
    step = record.failed_step
    log = record.directory / str(step.log)
    if step.message:
        yield f"{ERROR_PREFIX}{step.name} failed: {step.message}"
    else:
        lines = last_lines(log, LINES_OF_LOG_SHOWN)
        yield f"{ERROR_PREFIX}{step.name} failed; its log ends:"
        yield from (f"  {line}" for line in lines)
        if any(_NO_MOUNT.search(line) for line in lines):
            yield "no bucket is mounted here: open the uri of the artifact, not its path, or give a local one"
    yield f"log: {log}"
    if step.kind == UnavailableError.kind:
        yield f"it is an error of a service; to go on at this step: gpu-pipelines run --resume {record.run_id}"

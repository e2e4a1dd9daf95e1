"""The runs on this machine in the form in which the console shows them, read only from the folder of runs."""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from gpu_pipelines.artifacts.checkpoint import METRICS
from gpu_pipelines.artifacts.checkpoint_store import read_metrics
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.console.shown import LOCAL, Curve, LogPart, Measured, Page, Row, Run, Task
from gpu_pipelines.dag.placement import TRAINING_STEPS
from gpu_pipelines.errors import NotFoundError, UserError
from gpu_pipelines.reports.training_progress import TrainingProgress, training_progress
from gpu_pipelines.targets.runs.record import RUN, RunRecord
from gpu_pipelines.targets.steps import StepRecord, last_lines

#: Most bytes of a log that are sent at once.
_MOST_OF_A_LOG = 256 * 1024
#: A record is written this often, so that a step may have taken longer by now.
_SECONDS_OF_A_RECORD = 6.0
#: Figures of a training that are not drawn as curves.
_NO_CURVE = ("step", "epoch", "samples", "time", "seconds")


class LocalRuns:
    """The runs in a folder.

    Args:
        folder: the folder of runs; it need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Records that no longer change, with the state of the file from which they were read.
        self._rows: dict[str, tuple[tuple[int, int], Row]] = {}

    def rows(self) -> list[Row]:
        """All runs, the newest first, also those with a damaged record."""
        found = [self._row(file) for file in self.folder.glob(f"*/{RUN}")]
        return sorted(found, key=lambda row: (row.started, len(row.id), row.id), reverse=True)

    def run(self, run_id: str) -> Run:
        """A run.

        Raises:
            UserError: there is no such run, or its record is damaged.
        """
        return _shown(self.record(run_id))

    def record(self, run_id: str) -> RunRecord:
        """The record of a run.

        Raises:
            UserError: there is no such run, or its record is damaged.
        """
        # The name comes from an address: it has to be that of a folder here, and must not lead elsewhere.
        if Path(run_id).name != run_id or run_id == ".." or not (self.folder / run_id / RUN).is_file():
            raise NotFoundError(f"There is no run {run_id[:80]!r} in {self.folder}.", "It may have been removed.")
        return RunRecord.load(self.folder / run_id)

    def log(self, run_id: str, task: str, start: int) -> LogPart:
        """A part of the log of a task.

        Args:
            run_id: the id of the run.
            task: name of the task.
            start: the first byte; for a long log that is read from its beginning, only the end is returned.

        Raises:
            UserError: there is no such run, task or log.
        """
        record = self.record(run_id)
        step = next((each for each in record.steps if each.name == task and each.log), None)
        if step is None:
            raise NotFoundError(f"There is no log of {task[:80]!r} in {run_id}.", "The task has not begun.")
        path = _inside(record.directory, record.directory / str(step.log))
        size = path.stat().st_size
        begin = max(start, size - _MOST_OF_A_LOG)
        with path.open("rb") as file:
            file.seek(begin)
            content = file.read(_MOST_OF_A_LOG)
        # Only whole lines are sent, so that no character is cut in two.
        is_over = step.status != "running"
        if not is_over:
            content = content[: content.rfind(b"\n") + 1]
        text = content.decode("utf-8", "replace")
        if begin > start:
            text = f"… the first {begin:,} bytes are in {path}\n" + text.partition("\n")[2]
        return LogPart(text, begin + len(content), is_over and begin + len(content) >= size)

    def page(self, run_id: str, key: str) -> bytes:
        """The HTML of a page of a run.

        Args:
            run_id: the id of the run.
            key: `report` for the run's own; else the number of a task's page.

        Raises:
            UserError: there is no such page, or it is not in the folder of runs.
        """
        record = self.record(run_id)
        if key == "report":
            return _inside(record.directory, record.report).read_bytes()
        pages = {str(number): page for number, page in enumerate(record.pages)}
        if key not in pages:
            raise NotFoundError(f"There is no page {key[:20]!r} of {run_id}.", "Open the run again.")
        # A reused step has its page in another run.
        return _inside(self.folder, Path(pages[key]["path"])).read_bytes()

    def stop(self, run_id: str) -> None:
        """Asks a run to end, like Ctrl-C: a training writes a checkpoint first.

        Raises:
            UserError: it is not running here.
        """
        record = self.record(run_id)
        if not _can_stop(record):
            raise UserError(f"{run_id} is not running on this machine.", "There is nothing to stop.")
        os.kill(record.process_id, signal.SIGINT)

    def measured(self, run_id: str) -> dict[str, Measured]:
        """The figures of a run's model on test, with their intervals; else those that its steps have logged."""
        record = self.record(run_id)
        place = record.artifacts.get("best_checkpoint", "")
        if place and (Path(place) / EVALUATION).is_file():
            return measured_in(Evaluation.load(Path(place)))
        return {name: Measured(value) for name, value in record.metrics.items()}

    def curves(self, run_id: str) -> list[Curve]:
        """The curves that the trainings of a run have logged."""
        record = self.record(run_id)
        place = Path(record.checkpoints) if record.checkpoints else record.directory / "artifacts" / "checkpoints"
        files = sorted(place.glob(f"**/{METRICS}")) if place.is_dir() else []
        return [curve_of(_name_of(file, len(files)), read_metrics(file)) for file in files]

    def _row(self, file: Path) -> Row:
        try:
            state = file.stat()
            seen = (state.st_mtime_ns, state.st_size)
            known = self._rows.get(file.parent.name)
            if known and known[0] == seen:
                return known[1]
            record = RunRecord.load(file.parent)
        except (UserError, OSError) as error:
            return Row(LOCAL, file.parent.name, "", "damaged", message=str(error))
        row = _row(record)
        if not row.is_going_on:
            self._rows[row.id] = (seen, row)
        return row


def measured_in(evaluation: Evaluation) -> dict[str, Measured]:
    """The figures on test of an evaluation; those that are not finite are left out."""
    return {
        name: Measured(each["value"], each.get("low"), each.get("high"))
        for name, each in evaluation.test["metrics"].items()
        if each.get("value") is not None
    }


def curve_of(training: str, entries: list[dict[str, float]]) -> Curve:
    """The figures of a `metrics.jsonl` by name, each as values by step."""
    points: dict[str, list[tuple[float, float]]] = {}
    for entry in entries:
        for name, value in entry.items():
            if name not in _NO_CURVE and isinstance(value, int | float) and "step" in entry:
                points.setdefault(name, []).append((entry["step"], float(value)))
    return Curve(training, {name: values for name, values in points.items() if len(values) > 1})


def _name_of(file: Path, count: int) -> str:
    return file.parent.name if count > 1 else ""


def _row(record: RunRecord) -> Row:
    return Row(
        LOCAL,
        record.run_id,
        record.pipeline,
        record.status,
        record.started,
        record.seconds,
        record.registered,
        record.key_figure,
    )


def _shown(record: RunRecord) -> Run:
    failed = record.ended_by
    pages = [Page("", "report of the run", "report")] if record.report.is_file() else []
    pages += [Page(page["step"], page["name"], str(number)) for number, page in enumerate(record.pages)]
    outputs = {**record.outputs, **record.artifacts}
    about = {
        "started": record.started.replace("T", " ").replace("+00:00", " UTC"),
        "accelerator": record.accelerator or "all local GPUs, else cpu:2",
        "folder": str(record.directory),
        **record.versions,
    }
    return Run(
        _row(record),
        record.dependencies,
        [_task(step) for step in record.steps],
        record.parameters,
        outputs,
        pages,
        record.metrics,
        " ".join(_headline(record)),
        _error(record, failed) if failed else "",
        about,
        _can_stop(record),
        dict(_progress(record)),
    )


def _progress(record: RunRecord) -> Iterator[tuple[str, TrainingProgress]]:
    """The progress of the trainings that are running, from the files beside their checkpoints."""
    going_on = [step for step in record.steps if step.status == "running" == record.status]
    place = Path(str(record.parameters.get("checkpoint_uri") or record.checkpoints or "-"))
    for step in going_on:
        if step.task in TRAINING_STEPS and place.is_dir():
            began = time.time() - step.seconds - _SECONDS_OF_A_RECORD
            if found := training_progress(place, began):
                yield step.label, found


def _error(record: RunRecord, failed: StepRecord) -> str:
    """The error of a failed task: its message, else the last line of its log."""
    if failed.message or not failed.log:
        return failed.message
    try:
        return "".join(last_lines(_inside(record.directory, record.directory / failed.log), 1))
    except UserError:
        return ""


def _headline(record: RunRecord) -> Iterator[str]:
    if record.status == "running":
        now = ", ".join(step.label for step in record.steps if step.status == "running")
        yield f"Running: {now}." if now else "Running."
    elif record.status == "died":
        yield f"It has died: its process, {record.process_id}, ended without a result."
    elif step := record.ended_by:
        yield f"{step.label} failed."
    elif record.status == "succeeded":
        yield "It has succeeded."
        if record.registered:
            yield f"{record.registered} {_of_the_model(record)}."
    else:
        yield f"It was {record.status}." if record.status == "interrupted" else f"It has {record.status}."
    if record.reason:
        yield record.reason


def _of_the_model(record: RunRecord) -> str:
    """The outcome for the model of a run; its evaluation may have been removed since."""
    try:
        return "is the champion" if record.is_champion else "was registered"
    except UserError:
        return "was registered; its evaluation no longer exists"


def _task(step: StepRecord) -> Task:
    seconds = None if step.status == "reused" else step.seconds
    return Task(step.name, step.label, step.status, seconds, step.message, bool(step.log), step.made_by)


def _can_stop(record: RunRecord) -> bool:
    is_ours = record.machine == platform.node() and record.process_id != os.getpid()
    return record.status == "running" and is_ours and record.is_alive


def _inside(folder: Path, path: Path) -> Path:
    """A file in a folder, after following links.

    Raises:
        UserError: it is missing, or outside of the folder.
    """
    found = path.resolve()
    if not found.is_relative_to(folder.resolve()) or not found.is_file():
        raise NotFoundError(f"{path.name} is not in {folder}.", "It may have been removed.")
    return found

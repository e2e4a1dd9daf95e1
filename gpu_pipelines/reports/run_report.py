"""`report.html` of a run on this machine, also while it runs: its steps and, below, their reports."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gpu_pipelines.component_interface.parameter import shown_value
from gpu_pipelines.reports.dag import draw_dag
from gpu_pipelines.reports.durations import format_seconds
from gpu_pipelines.reports.page import render, sections_of, write_page
from gpu_pipelines.reports.training_progress import training_progress
from gpu_pipelines.targets.runs.record import TRAINING_STEPS, RunRecord
from gpu_pipelines.targets.steps import StepRecord

# The verdict first, then the steps that led to it.
REPORTS = ("evaluation_report", "training_report", "data_report")
KINDS = {"succeeded": "good", "reused": "", "running": "", "failed": "bad", "died": "bad", "interrupted": "warn"}
#: Seconds after which the report of a running run is reloaded.
_REFRESH = 5
#: The parameter with the variables of a script, whose values may be secrets: the page is made to be passed on.
_ENVIRONMENT = "script_environment"


def write_run_report(record: RunRecord, said: Mapping[str, str] | None = None) -> None:
    """Writes the report of a run; while the run goes on, the page shows what there is and reloads itself.

    Args:
        record: the run's record.
        said: the last lines of running steps, by name.
    """
    reports = [path.absolute() for path in _step_reports(record)]
    turns = {step.place: step.label for step in record.steps if step.turn}
    body = Markup("").join(_titled(turns.get(str(path.parent), ""), sections_of(path)) for path in reports)
    others = [page for page in record.pages if Path(page["path"]).absolute() not in reports]
    shown = [(turns.get(str(Path(page["path"]).parent), page["step"]), page) for page in others]
    body += Markup("").join(
        _titled(step, sections_of(Path(page["path"]))) for step, page in reversed(shown) if is_page(page)
    )
    sections = render(
        Path(__file__).with_name("run_report.html"),
        r=record,
        headline=_headline(record),
        dag=draw_dag(
            record.dependencies,
            {step.name: step.status for step in record.steps},
            _notes(record),
        ),
        steps=_steps(record),
        running=_running(record, said or {}),
        body=body,
        others=[
            {"name": page["name"], "step": step, "path": _relative(page["path"], record)}
            for step, page in shown
            if not is_page(page)
        ],
        parameters={
            name: ", ".join(value) if name == _ENVIRONMENT else shown_value(value)
            for name, value in record.parameters.items()
        },
    )
    # A browser that reads it meanwhile gets a complete page.
    scratch = record.report.with_name(f".{record.report.name}")
    refresh = _REFRESH if record.status == "running" else 0
    write_page(scratch, record.pipeline, sections, f"Run {record.run_id} on this machine", refresh)
    scratch.replace(record.report)


def _step_reports(record: RunRecord) -> Iterator[Path]:
    if record.artifacts:
        yield from (Path(record.artifacts[name]) for name in REPORTS if name in record.artifacts)
        return
    # The runner returns no outputs of a run that failed or is running, but finished steps have left theirs.
    ended = {step.name for step in record.steps if step.status != "running"}
    for step, name in (
        ("evaluate-checkpoints", "report"),
        ("train-model", "training_report"),
        ("prepare-data", "report"),
    ):
        if step in ended:
            yield from (record.directory / "artifacts").glob(f"*/{step}/{name}")


def is_page(page: Mapping[str, str]) -> bool:
    """Whether a page was written by a step of this project."""
    return page["path"].endswith("report") and bool(sections_of(Path(page["path"])))


def _titled(step: str, sections: Markup) -> Markup:
    """The sections of a step under its name, if there are several steps of its kind; else without a name."""
    if not step:
        return sections
    return Markup("<h2>{}</h2>").format(step) + sections


def _relative(path: str, record: RunRecord) -> str:
    return os.path.relpath(path, record.directory)


def _notes(record: RunRecord) -> dict[str, str]:
    """The notes on the steps in the picture of the pipeline."""
    others = dict.fromkeys(record.dependencies, "waits" if record.status == "running" else "not run")
    return {**others, **{step.name: _note(step) for step in record.steps}}


def _headline(record: RunRecord) -> dict[str, Any]:
    headline = _verdict(record)
    if record.resumes:
        taken = [step.name for step in record.steps if step.status == "reused"]
        line = f"It goes on from {record.resumes}" + (f", with the results of {', '.join(taken)}." if taken else ".")
        headline["lines"] = [*headline["lines"], line]
    return headline


def _verdict(record: RunRecord) -> dict[str, Any]:
    if record.status == "succeeded":
        return _success(record)
    if record.status == "running":
        now = ", ".join(step.label for step in record.steps if step.status == "running")
        line = f"Since {record.started[:16].replace('T', ' ')} UTC. This page reads itself again every {_REFRESH} s."
        return {"kind": "", "text": f"Running: {now}" if now else "Running", "lines": [line], "message": ""}
    if record.status == "died":
        line = f"Its process, {record.process_id}, is gone without having said how it ended."
        return {"kind": "bad", "text": "The run has died", "lines": [line], "message": ""}
    if step := record.ended_by:
        return {
            "kind": "bad",
            "text": f"{step.name} failed",
            "lines": [f"It ran for {format_seconds(step.seconds)}. No model was registered."],
            "message": step.message or f"Its log says more: {step.log}",
        }
    if record.status == "failed":
        return {"kind": "bad", "text": "The run failed", "lines": [], "message": record.reason}
    return {"kind": "warn", "text": "The run was interrupted", "lines": ["No model was registered."], "message": ""}


def _success(record: RunRecord) -> dict[str, Any]:
    took = f"The run took {format_seconds(record.seconds)}."
    if not record.model:
        outcome, _, why = record.reason.partition(": ")
        text = f"{outcome.capitalize()}: no model was trained" if outcome else f"{record.pipeline} has finished"
        return {"kind": "good", "text": text, "lines": [f"{_sentence(why)} {took}" if why else took], "message": ""}
    name = f"{record.model['model_name']} version {int(record.model['version'])}"
    instead = f"{name} was added; {record.instead}" if record.added else f"{name} is the same model; nothing was added"
    text = f"{name} is the champion" if record.is_champion else instead
    outcome, _, why = record.reason.partition(": ")
    # A user's own pipeline may train whatever the check for new data has found.
    lines = [f"Trained {'because' if outcome == 'training' else 'though'} {why}. {took}" if why else took]
    return {"kind": "good" if record.is_champion else "warn", "text": text, "lines": lines, "message": ""}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _note(step: StepRecord) -> str:
    if step.status == "running":
        # The page may be read long after it was written.
        return f"running since {datetime.now(timezone.utc) - timedelta(seconds=step.seconds):%H:%M:%S} UTC"
    return f"{step.status}, {_took(step)}" if _took(step) else step.status


def _took(step: StepRecord) -> str:
    return "" if step.status in ("reused", "running") else format_seconds(step.seconds)


def _running(record: RunRecord, said: Mapping[str, str]) -> list[dict[str, Any]]:
    """The running steps, with their last lines, and the progress of trainings."""
    found = []
    for step in (each for each in record.steps if each.status == "running" == record.status):
        places = [str(record.parameters.get("checkpoint_uri") or ""), record.checkpoints]
        here = (Path(place) for place in places if step.task.startswith(TRAINING_STEPS) and Path(place).is_dir())
        tried = (training_progress(place, time.time() - step.seconds) for place in here)
        progress = next((each for each in tried if each), None)
        if progress or said.get(step.name):
            found.append({"name": step.label, "said": said.get(step.name, ""), "progress": progress})
    return found


def _steps(record: RunRecord) -> list[dict[str, Any]]:
    total = sum(step.seconds for step in record.steps) or 1.0
    rows, passed = [], 0.0
    for step in record.steps:
        rows.append(
            {
                "name": step.label,
                "made_by": step.made_by,
                "status": step.status,
                "kind": KINDS[step.status],
                "took": _took(step),
                "offset": round(100 * passed / total, 2),
                "share": round(100 * step.seconds / total, 2),
                "log": step.log,
            }
        )
        passed += step.seconds
    return rows

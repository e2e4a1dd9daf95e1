"""`gpu-pipelines run` on this machine: runs a pipeline and shows how it goes and what came of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpu_pipelines.errors import ERROR_PREFIX

if TYPE_CHECKING:
    from rich.console import Console

    from gpu_pipelines.cli.local_request import LocalRequest
    from gpu_pipelines.targets.local.log import Observer, StepRecord
    from gpu_pipelines.targets.run_record import RunRecord

LINES_OF_LOG_SHOWN = 12
METRICS_SHOWN = 4
CACHE = ".cache"
#: What a step does before it ends when it is interrupted.
_WHEN_STOPPED = {"prepare-data": "keeps what is done and ends", "train-model": "writes a checkpoint and ends"}


def run_here(
    pipeline: str,
    assignments: Sequence[str],
    file: Path | None,
    accelerator: str,
    runs: Path,
    *,
    reuse: bool,
    resume: bool,
    dry_run: bool,
    trial: bool,
) -> None:
    """Runs a pipeline on this machine and waits for it.

    Args:
        pipeline: its name.
        assignments: parameters as texts of the form `key=value`.
        file: a YAML file of parameters.
        accelerator: `cpu:N` or empty.
        runs: gets a directory for each run.
        reuse: skip steps whose inputs have not changed.
        resume: continue the newest run that was interrupted.
        dry_run: check and show the request only.
        trial: train a few steps only, and project time and cost.

    Raises:
        UserError: lists everything that is wrong with the request.
        typer.Exit: with the exit status of a run that did not succeed.
    """
    from gpu_pipelines.cli.local_request import check_request
    from gpu_pipelines.cli.tables import console_on

    request = check_request(pipeline, assignments, file, accelerator, runs, resume=resume)
    # Bound to stdout as it is now: while the pipeline runs, stdout is read by the local target.
    console = console_on(sys.stdout)
    if dry_run:
        _show_request(console, request)
        return
    if trial:
        from gpu_pipelines.cli.trial import show_trial, try_training
        from gpu_pipelines.cli.trial_record import save_trial

        save_trial(runs, request.arguments, show_trial(console, try_training(request)))
        return
    from gpu_pipelines.cli.progress import progress_on

    with progress_on(console) as progress:
        record = _run_and_record(request, runs, progress, reuse=reuse or resume)
    if record.status == "succeeded":
        if record.model:
            _show_result(console, record)
        else:
            _show_lines(console, [record.reason, *_end(record)])
        return
    _show_failure(record)
    raise typer.Exit(130 if record.status == "interrupted" else 1)


def _run_and_record(request: LocalRequest, runs: Path, observer: Observer, *, reuse: bool) -> RunRecord:
    from gpu_pipelines.targets.local.target import run_locally
    from gpu_pipelines.targets.run_record import RunRecord, new_run_directory, write_outcome

    run_id, directory = new_run_directory(runs, request.name)
    record = RunRecord(
        run_id=run_id,
        pipeline=request.name,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        parameters=request.arguments,
        accelerator=request.accelerator,
        dependencies=request.dependencies,
        directory=directory,
    )
    record.save()
    started = time.monotonic()
    outcome = run_locally(
        request.pipeline, request.taken, directory, runs / CACHE, observer, reuse=reuse, stopping=_say_stopping
    )
    record.status, record.steps = outcome.status, outcome.steps
    record.seconds = time.monotonic() - started
    left = outcome.outputs
    record.artifacts, record.model, record.reason = left.artifacts, left.model, left.reason
    record.save()
    from gpu_pipelines.reports.run_report import write_run_report

    write_run_report(record)
    write_outcome(runs, record)
    return record


def _say_stopping(step: StepRecord | None) -> None:
    """Says at once that a Ctrl-C has arrived, and what takes its time now."""
    from gpu_pipelines.targets.local.processes import SECONDS_TO_END

    if step is None:
        return
    doing = _WHEN_STOPPED.get(step.name, "ends")
    told = f"interrupted: {step.name} {doing}, within {SECONDS_TO_END:.0f} s. Ctrl-C again ends it now."
    print(told, file=sys.stderr, flush=True)


def _show_request(console: Console, request: LocalRequest) -> None:
    from gpu_pipelines.cli.tables import Column, Table

    console.print(
        f"{request.name} on this machine: {' → '.join(request.dependencies)}", highlight=False, soft_wrap=True
    )
    table = Table("parameter", Column.text("value"))
    for name, value in request.arguments.items():
        shown = ", ".join(value) if isinstance(value, list) else str(value)
        table.add_row(name, shown.lower() if isinstance(value, bool) else shown)
    table.print(console)
    console.print("Nothing was run.")


def _show_result(console: Console, record: RunRecord) -> None:
    from gpu_pipelines.artifacts.evaluation import Evaluation
    from gpu_pipelines.cli.tables import Column, Table
    from gpu_pipelines.numbers import figure

    evaluation = Evaluation.load(Path(record.artifacts["best_checkpoint"]))
    # The report has them all.
    metrics = sorted(evaluation.test["metrics"], key=lambda name: name != evaluation.select_by)[:METRICS_SHOWN]
    table = Table("checkpoint", "", *(Column.number(name, spare=place) for place, name in enumerate(metrics)))
    for scored in evaluation.checkpoints:
        values = [figure(scored["val"].get(name)) for name in metrics]
        table.add_row(scored["name"], "val", *values, style="bold" if scored["name"] == evaluation.best else "")
    test = [figure(evaluation.test["metrics"][name]["value"]) for name in metrics]
    table.add_row(evaluation.best, "test", *test, style="bold")
    table.print(console)
    for gate in evaluation.gates:
        sign = "[green]✓[/]" if gate["passed"] else "[red]✗[/]"
        console.print(f"{sign} {gate['gate']}: {gate['why']}", highlight=False, soft_wrap=True)
    lines = [
        f"{'registered' if record.added else 'nothing was registered: the same model is'} "
        f"{record.model['model_name']} version {int(record.model['version'])} "
        f"as {' and '.join(record.model['aliases'])} in {record.parameters['registry']}",
    ]
    if not record.is_champion:
        lines.append(f"{record.instead}; the gates say why")
    _show_lines(console, [*lines, *_end(record)])


def _end(record: RunRecord) -> list[str]:
    from gpu_pipelines.reports.durations import format_seconds

    return [f"finished in {format_seconds(record.seconds)}", f"report: {record.report}"]


def _show_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        # Not wrapped at the console's width, so that a path can be copied.
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _show_failure(record: RunRecord) -> None:
    from gpu_pipelines.targets.target import PREPARES

    if record.status == "interrupted":
        print(f"interrupted; logs: {record.directory / 'logs'}", file=sys.stderr)
        in_preparation = record.steps and record.steps[-1].name == PREPARES
        how = "again" if in_preparation else "with --resume"
        print(f"run the same command {how} to continue", file=sys.stderr)
        return
    step = record.steps[-1]
    log = record.directory / str(step.log)
    if step.message:
        print(f"{ERROR_PREFIX}{step.name} failed: {step.message}", file=sys.stderr)
    else:
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        print(f"{ERROR_PREFIX}{step.name} failed; its log ends:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in lines[-LINES_OF_LOG_SHOWN:]), file=sys.stderr)
    print(f"log: {log}", file=sys.stderr)

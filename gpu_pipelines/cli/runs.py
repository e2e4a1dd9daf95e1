"""`gpu-pipelines runs`: shows, compares and removes the runs on this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli.application import Application, print_json
from gpu_pipelines.cli.target_options import HERE, AsJson, of_targets
from gpu_pipelines.errors import InvalidRequestError, NotFoundError
from gpu_pipelines.terminal import Column, Table

if TYPE_CHECKING:
    from gpu_pipelines.targets.runs.record import RunRecord

app = Application(help="List, show, compare and remove the runs of this machine.")

_STYLES = {"succeeded": "", "running": "cyan", "failed": "red", "died": "red", "interrupted": "yellow"}
#: Most characters of each of two values side by side.
_MOST_CHARACTERS = 40

Run = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, a unique beginning of it, or latest.")]
Runs = Annotated[Path, typer.Option(metavar="DIR", help="Directory of the runs.")]
_RUNS = Path("runs")


@app.command("list")
def list_runs(runs: Runs = _RUNS, as_json: AsJson = False) -> None:
    """List the runs, the newest first."""
    from gpu_pipelines.driver.runs import readable_runs
    from gpu_pipelines.reports.durations import format_seconds

    records = readable_runs(runs)
    if as_json:
        print_json([record.document for record in records])
        return
    if not records:
        print(f"No runs in {runs}. gpu-pipelines run PIPELINE makes one.")
        return
    table = Table(
        "run",
        "status",
        Column("model", spare=1),
        Column.text("metric"),
        Column.number("took"),
        Column("started", spare=2),
    )
    for each in records:
        started = each.started[:16].replace("T", " ")
        row = [each.run_id, each.status, each.registered, each.key_figure, format_seconds(each.seconds), started]
        table.add_row(*row, style=_STYLES.get(each.status, ""))
    table.print()


@app.command()
@of_targets("runs show", default=HERE)
def show(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="On this machine: its id, a unique beginning of it, or latest. Elsewhere: the name that run printed.",
        ),
    ],
    target: Any,
    runs: Runs = _RUNS,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page; for a run elsewhere.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run: its steps, results and parameters; with --target a run elsewhere, and its cost."""
    if target.name == HERE:
        if report:
            raise InvalidRequestError(
                "A run on this machine already has a page.", f"gpu-pipelines runs open {run} opens it."
            )
        show_here(run, runs, as_json)
    else:
        show_there(target, run, report, as_json)


def show_there(target: Any, run: str, report: Path | None, as_json: bool) -> None:
    """Shows a run of another target: its state and its cost, which its tracker also gets.

    Args:
        target: the target of the run.
        run: its name on the target.
        report: the file for the same as a page; None for none.
        as_json: print one JSON document, and nothing else.

    Raises:
        UserError: the target cannot show runs, there is no such run, or the page cannot be written.
    """
    from gpu_pipelines.cli.run import show as show_lines
    from gpu_pipelines.driver.runs import account_of
    from gpu_pipelines.reports.account_page import write_account_page
    from gpu_pipelines.targets.fallback.shown import tries_of_run

    account = account_of(target, run)
    if report:
        write_account_page(account, report)
    tried = tries_of_run(run, target.settings)
    if as_json:
        print_json({**account.to_json(), **({"tries": tried} if tried else {})})
        return
    show_lines([*account.lines(), *([f"report: {report}"] if report else [])])
    if tried:
        _print_tries(run, tried)


def show_here(run: str, runs: Path, as_json: bool) -> None:
    """Shows a run on this machine.

    Args:
        run: its id, a unique beginning of it, or `latest`.
        runs: directory of the runs.
        as_json: print one JSON document, and nothing else.

    Raises:
        UserError: there is no such run, or there are several.
    """
    from gpu_pipelines.targets.fallback.shown import tries_of_run
    from gpu_pipelines.targets.runs.recorded import run_named

    try:
        record = run_named(runs, run)
    except NotFoundError:
        # A run in the cloud has no record here, but the machines that were tried for it are listed in its bucket.
        if not (tried := tries_of_run(run)):
            raise
        if as_json:
            print_json({"run": run, "tries": tried})
        else:
            _print_tries(run, tried)
        return
    if as_json:
        print_json(record.document)
    else:
        _print_record(record)


def _print_record(record: RunRecord) -> None:
    from gpu_pipelines.component_interface.parameter import shown_value
    from gpu_pipelines.numbers import figure_or_count
    from gpu_pipelines.reports.durations import format_seconds

    print(f"{record.run_id}: {record.status}, {format_seconds(record.seconds)} from {record.started[:16]} UTC")
    if record.resumes:
        print(f"goes on from {record.resumes}")
    for line in ([record.registered] if record.model else []) + ([record.reason] if record.reason else []):
        print(line)
    if record.cost:
        print(f"cost: {record.cost}")
    steps = Table("step", "status", Column.number("took"), Column.text("log"))
    for step in record.steps:
        took = "" if step.status == "reused" else format_seconds(step.seconds)
        steps.add_row(step.name, step.status, took, f"{record.directory / step.log}" if step.log else "")
    _print_section("", steps)
    for step in record.steps:
        if step.message:
            print(f"\n{step.name} failed: {step.message}")
    metrics = Table("metric", Column.number("value"))
    for name, number in record.metrics.items():
        metrics.add_row(name, figure_or_count(number))
    for name, text in record.metric_texts.items():
        metrics.add_row(name, text)
    _print_section("metrics", metrics, bool(record.metrics or record.metric_texts))
    for heading, values in (
        ("outputs", record.outputs),
        ("artifacts", record.artifacts),
        ("parameters", record.parameters),
    ):
        table = Table(heading[:-1], Column.text("value"))
        for name, value in values.items():
            table.add_row(name, shown_value(value))
        _print_section(heading, table, bool(values))
    if record.report.is_file():
        print(f"\nreport: {record.report}")


def _print_tries(run: str, tried: Mapping[str, Any]) -> None:
    """Prints the machines that were tried for the steps of a run, and why each try ended."""
    from gpu_pipelines.targets.fallback.tries import told_tries

    print(f"{run}: machines that were tried")
    for step, document in tried.items():
        numbers = Column.number("ran"), Column.number("cost")
        table = Table("", "machines", "asked for (UTC)", *numbers, Column.text("end"))
        for row in told_tries(document["tries"]):
            table.add_row(*row)
        _print_section(step, table)
        if document.get("refused"):
            print(document["refused"])


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A run, as in the other commands.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    runs: Runs = _RUNS,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: parameters that differ, metrics side by side, and how long the steps took."""
    from gpu_pipelines.component_interface.parameter import shown_value
    from gpu_pipelines.driver.runs import differences
    from gpu_pipelines.numbers import figure_or_count
    from gpu_pipelines.targets.runs.recorded import run_named

    pair = run_named(runs, first), run_named(runs, second)
    document = differences(*pair)
    if as_json:
        print_json(document)
        return
    print(f"A: {pair[0].run_id}  {pair[0].status}\nB: {pair[1].run_id}  {pair[1].status}")
    parameters = Table("parameter", "A", "B")
    for name, given in document["parameters"].items():
        parameters.add_row(name, *(_short(shown_value(given[each])) if each in given else "–" for each in "ab"))
    _print_section("parameters that differ", parameters, bool(document["parameters"]))
    metrics = Table("metric", Column.number("A"), Column.number("B"), Column.number("B − A"))
    for name, values in document["metrics"].items():
        metrics.add_row(name, *(figure_or_count(values.get(each)) for each in "ab"), _change(values))
    _print_section("metrics", metrics, bool(document["metrics"]))
    seconds = Table("step", Column.number("A"), Column.number("B"))
    for name, took in document["steps"].items():
        seconds.add_row(name, *(_took(took.get(each)) for each in "ab"))
    _print_section("durations of the steps", seconds, bool(document["steps"]))


@app.command("open")
def open_report(run: Run, runs: Runs = _RUNS) -> None:
    """Open the report of a run in the browser; without a browser, print its path."""
    import webbrowser

    from gpu_pipelines.reports.run_report import write_run_report
    from gpu_pipelines.targets.runs.recorded import run_named

    record = run_named(runs, run)
    # A run that has died says in its last report that it runs; another may have had no space for its report.
    if record.status == "died" or not record.report.is_file():
        write_run_report(record)
    print(record.report.resolve())
    if has_browser():
        webbrowser.open(record.report.resolve().as_uri())


def has_browser() -> bool:
    """Whether there is a browser with a window; one in the terminal would only show the page's text."""
    import os
    import webbrowser

    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return False
    if os.environ.get("BROWSER") or sys.platform == "darwin":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) and found is not None


@app.command("rm")
def remove(
    run: Annotated[
        list[str], typer.Argument(metavar="RUN…", help="Ids of runs, unique beginnings of them, or latest.")
    ],
    runs: Runs = _RUNS,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove runs with their artifacts and checkpoints; models in a registry stay."""
    from gpu_pipelines.driver.runs import removed
    from gpu_pipelines.targets.runs.recorded import run_named

    records = list({each.run_id: each for each in (run_named(runs, name) for name in run)}.values())
    named = ", ".join(record.run_id for record in records)
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidRequestError(f"There is no terminal to ask whether to remove {named}.", "Give --yes.")
        if not typer.confirm(f"Remove {named} with all artifacts and checkpoints?"):
            raise typer.Exit(1)
    removed(runs, records)
    print(f"removed {named}")


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def _change(values: dict[str, float]) -> str:
    """The difference of a metric in the second run; empty if a run does not have it."""
    from gpu_pipelines.numbers import figure_or_count

    if len(values) < 2:
        return ""
    change = values["b"] - values["a"]
    return f"{'−' if change < 0 else '+'}{figure_or_count(abs(change))}"


def _took(value: float | str | None) -> str:
    """The duration of a step, or its outcome instead."""
    from gpu_pipelines.reports.durations import format_seconds

    return format_seconds(value) if isinstance(value, float | int) else value or "–"


def _print_section(heading: str, table: Table, has_rows: bool = True) -> None:
    if has_rows:
        print(f"\n{heading}" if heading else "")
        table.print()

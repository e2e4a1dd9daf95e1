"""`gpu-pipelines schedule`: runs of a pipeline that start by the clock."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from gpu_pipelines.cli.application import Application, print_json
from gpu_pipelines.cli.run import show
from gpu_pipelines.cli.target_options import THERE, AsJson, Cache, DryRun, Param, Params, of_targets

app = Application(help="Schedule runs of a pipeline on Vertex AI or Kubeflow.")

Schedule = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Name or id of the schedule.")]
Zone = Annotated[
    str | None, typer.Option("--time-zone", metavar="ZONE", help="Time zone, such as Europe/Paris; default UTC.")
]
Start = Annotated[
    str | None, typer.Option(metavar="TIME", help="Start no run before this time, such as 2027-01-31T03:00.")
]
End = Annotated[str | None, typer.Option(metavar="TIME", help="Start no run after this time.")]


def of_schedules(verb: str, *, with_flags: bool = False) -> Any:
    """Makes a function a command on schedules of the targets that have them."""
    return of_targets(f"schedule {verb}", can="schedules", default=THERE, with_flags=with_flags)


@app.command()
@of_schedules("create", with_flags=True)
def create(
    pipeline: Annotated[
        str,
        typer.Argument(
            help="An uploaded pipeline: its name, NAME/TAG or NAME/VERSION, or its address; or a file, which is sent."
        ),
    ],
    target: Any,
    cron: Annotated[str, typer.Option("--cron", metavar="EXPRESSION", help="Five fields: '0 3 * * *' is daily at 3.")],
    name: Annotated[str, typer.Option(help="Name of the schedule; it has to be unique.")],
    time_zone: Zone = None,
    start: Start = None,
    end: End = None,
    max_concurrent: Annotated[int, typer.Option(min=1, help="Most runs at the same time.")] = 1,
    param: Param = None,
    params: Params = None,
    cache: Cache = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Create a schedule of an uploaded version, or of a file. A tag is resolved to the version that it names now."""
    from gpu_pipelines.driver.scheduling import new_schedule
    from gpu_pipelines.targets.cron import parse_cron

    limits = (start, end, max_concurrent)
    compiled, submission = new_schedule(
        target, pipeline, name, parse_cron(cron, time_zone), limits, param or [], params, cache
    )
    _send(target, submission, compiled.told, "created", dry_run=dry_run, as_json=as_json)


@app.command("list")
@of_schedules("list")
def list_schedules(target: Any, as_json: AsJson = False) -> None:
    """List the schedules of a project in a region, or those of Kubeflow Pipelines."""
    found = target.schedules.all()
    if as_json:
        print_json([target.schedules.document(each) for each in found])
    else:
        show([target.schedules.table(found)])


@app.command()
@of_schedules("describe")
def describe(schedule: Schedule, target: Any, as_json: AsJson = False) -> None:
    """Show a schedule with its version, its parameters and its next runs."""
    _show(target, target.schedules.find(schedule), as_json)


def _add(verb: str, text: str) -> None:
    """Adds a command that only needs the schedule."""

    def command(schedule: Schedule, target: Any) -> None:
        show(getattr(target.schedules, verb)(schedule).lines)

    command.__doc__ = text
    app.command(verb)(of_schedules(verb)(command))


_add("pause", "Pause a schedule: it starts no more runs. Runs that have begun go on.")
_add("resume", "Resume a paused schedule.")
_add("delete", "Delete a schedule. Runs that have begun go on.")


@app.command()
@of_schedules("update")
def update(
    schedule: Schedule,
    target: Any,
    pipeline: Annotated[str | None, typer.Option(help="Another version: PACKAGE, PACKAGE/TAG, or its address.")] = None,
    cron: Annotated[str | None, typer.Option(metavar="EXPRESSION", help="Five fields.")] = None,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    time_zone: Zone = None,
    start: Start = None,
    end: End = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Most runs at the same time.")] = None,
    param: Param = None,
    params: Params = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Change a schedule on Vertex AI. Everything that is not given stays, including parameters.

    Another version brings its own defaults. Parameters stay if they differ from the defaults of the version before.
    """
    from gpu_pipelines.driver.scheduling import changed_schedule

    wanted, limits = (pipeline, name, cron, time_zone), (start, end, max_concurrent)
    told, submission = changed_schedule(target, schedule, wanted, limits, param or [], params)
    _send(target, submission, told, "changed", dry_run=dry_run, as_json=as_json)


def _send(target: Any, submission: Any, told: Any, done: str, *, dry_run: bool, as_json: bool) -> None:
    for line in told:
        print(line, file=sys.stderr)
    if dry_run:
        show(submission.shown())
        return
    _show(target, target.schedules.send(submission), as_json, done)


def _show(target: Any, found: Any, as_json: bool, done: str = "") -> None:
    if as_json:
        print_json(target.schedules.document(found))
    else:
        show(target.schedules.shown(found, done))

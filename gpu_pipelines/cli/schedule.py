"""`gpu-pipelines schedule`: runs of an uploaded pipeline that start by the clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli import job_options as options
from gpu_pipelines.cli.application import Application
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.cron import Cron
    from gpu_pipelines.targets.vertex.repository import PipelineVersion

app = Application(help="Schedule runs of an uploaded pipeline on Vertex AI or Kubeflow.")

Schedule = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Name or id of the schedule.")]
CronText = Annotated[str, typer.Option("--cron", metavar="EXPRESSION", help="Five fields: '0 3 * * *' is daily at 3.")]
Zone = Annotated[str | None, typer.Option("--time-zone", metavar="ZONE", help="Europe/Paris, say; default UTC.")]
Start = Annotated[str | None, typer.Option(metavar="TIME", help="No run before, as 2027-01-31T03:00.")]
End = Annotated[str | None, typer.Option(metavar="TIME", help="No run after.")]
MaxRuns = Annotated[int | None, typer.Option(min=1, help="End after so many runs.")]
Queue = Annotated[
    bool | None,
    typer.Option("--queue/--no-queue", help="Let a run that is due while others run wait, or leave it out (default)."),
]


@app.command()
def create(
    pipeline: Annotated[str, typer.Argument(help="An uploaded pipeline: PACKAGE, PACKAGE/TAG, or its address.")],
    cron: CronText,
    name: Annotated[str, typer.Option(help="Name of the schedule; no other may have it.")],
    time_zone: Zone = None,
    start: Start = None,
    end: End = None,
    max_runs: MaxRuns = None,
    max_concurrent: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
    queue: Queue = None,
    param: options.Param = None,
    params: options.Params = None,
    cache: options.Cache = None,
    repository: options.Repository = None,
    project: options.Project = None,
    region: options.Region = None,
    pipeline_root: options.PipelineRoot = None,
    service_account: options.ServiceAccount = None,
    network: options.Network = None,
    network_attachment: options.NetworkAttachment = None,
    failure_policy: options.FailurePolicy = None,
    encryption_key: options.EncryptionKey = None,
    label: options.Label = None,
    target: options.Cloud = "vertex",
    kubeflow_host: options.KubeflowHost = None,
    kubeflow_namespace: options.KubeflowNamespace = None,
    experiment: options.Experiment = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show the request; create nothing.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Create a schedule of an uploaded version. A tag is resolved to the version that it names now."""
    if options.is_kubeflow(target):
        from gpu_pipelines.cli import schedule_on_kubeflow as there

        vertex_only = {
            "--max-runs": max_runs,
            "--queue": queue is not None,
            "--repository": repository,
            "--service-account": service_account,
            "--network": network,
            "--network-attachment": network_attachment,
            "--failure-policy": failure_policy,
            "--encryption-key": encryption_key,
            "--label": label,
        }
        settings = there.settings_for(kubeflow_host, kubeflow_namespace, experiment, pipeline_root, vertex_only)
        timing = there.Timing(cron, time_zone, start, end, max_concurrent)
        there.create(pipeline, name, timing, settings, param or [], params, cache, dry_run=dry_run, as_json=as_json)
        return
    from gpu_pipelines.project_settings import load_project_settings
    from gpu_pipelines.targets.cron import parse_cron
    from gpu_pipelines.targets.vertex import schedules as vertex_schedules
    from gpu_pipelines.targets.vertex.repository import find_version

    given = {
        "repository": repository,
        "project": project,
        "region": region,
        "pipeline_root": pipeline_root,
        "service_account": service_account,
        "network": network,
        "network_attachment": network_attachment,
        "failure_policy": failure_policy,
        "encryption_key": encryption_key,
    }
    settings = options.with_labels(load_project_settings(given), label)
    settings.require("project", "region", "pipeline_root")
    when = parse_cron(cron, time_zone)
    begins, ends = time_of(start, when, "--start"), time_of(end, when, "--end")
    require_runs(when, begins, ends)
    version = find_version(pipeline, settings)
    job = _job(version, settings, param or [], params, cache)
    request = vertex_schedules.ScheduleRequest(
        name, when.text, begins, ends, max_runs, max_concurrent, bool(queue), job
    )
    if dry_run:
        _show_request(request.to_json(settings), settings)
        return
    _show(vertex_schedules.create(request, settings), as_json, "created")


@app.command("list")
def list_schedules(
    target: options.Cloud = "vertex",
    project: options.Project = None,
    region: options.Region = None,
    kubeflow_host: options.KubeflowHost = None,
    kubeflow_namespace: options.KubeflowNamespace = None,
    as_json: options.AsJson = False,
) -> None:
    """List the schedules of a project in a region, or those of Kubeflow Pipelines."""
    if options.is_kubeflow(target):
        from gpu_pipelines.cli import schedule_on_kubeflow

        schedule_on_kubeflow.show_all(options.kubeflow_settings(kubeflow_host, kubeflow_namespace), as_json)
        return
    from gpu_pipelines.targets.vertex import schedules as vertex_schedules

    settings = _settings(project, region)
    found = vertex_schedules.all_schedules(settings)
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if not found:
        print(f"No schedules in {settings.region}.")
        return
    from gpu_pipelines.cli.tables import Column, Table

    table = Table("name", "id", "state", "cron", Column("next run (UTC)", spare=1), Column.number("runs", spare=2))
    for schedule in found:
        table.add_row(
            schedule["displayName"],
            vertex_schedules.id_of(schedule),
            schedule.get("state", "").lower(),
            schedule.get("cron", ""),
            schedule.get("nextRunTime", "–")[:16].replace("T", " "),
            str(schedule.get("startedRunCount", 0)),
        )
    table.print()


@app.command()
def describe(
    schedule: Schedule,
    target: options.Cloud = "vertex",
    project: options.Project = None,
    region: options.Region = None,
    kubeflow_host: options.KubeflowHost = None,
    kubeflow_namespace: options.KubeflowNamespace = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a schedule with its version, its parameters and its next runs."""
    if options.is_kubeflow(target):
        from gpu_pipelines.cli import schedule_on_kubeflow

        schedule_on_kubeflow.show(schedule, options.kubeflow_settings(kubeflow_host, kubeflow_namespace), as_json)
        return
    from gpu_pipelines.targets.vertex import schedules as vertex_schedules

    _show(vertex_schedules.find(schedule, _settings(project, region)), as_json)


@app.command()
def pause(
    schedule: Schedule,
    target: options.Cloud = "vertex",
    project: options.Project = None,
    region: options.Region = None,
    kubeflow_host: options.KubeflowHost = None,
    kubeflow_namespace: options.KubeflowNamespace = None,
) -> None:
    """Let a schedule start no more runs. Those that have begun go on."""
    if options.is_kubeflow(target):
        from gpu_pipelines.cli import schedule_on_kubeflow

        schedule_on_kubeflow.pause(schedule, options.kubeflow_settings(kubeflow_host, kubeflow_namespace))
        return
    from gpu_pipelines.targets.vertex import schedules as vertex_schedules

    settings = _settings(project, region)
    found = vertex_schedules.find(schedule, settings)
    vertex_schedules.pause(found["name"], settings)
    print(f"paused {found['displayName']} ({vertex_schedules.id_of(found)})")


@app.command()
def resume(
    schedule: Schedule,
    catch_up: Annotated[bool, typer.Option("--catch-up", help="Make up for runs that were due in between.")] = False,
    target: options.Cloud = "vertex",
    project: options.Project = None,
    region: options.Region = None,
    kubeflow_host: options.KubeflowHost = None,
    kubeflow_namespace: options.KubeflowNamespace = None,
) -> None:
    """Let a paused schedule start runs again."""
    if options.is_kubeflow(target):
        from gpu_pipelines.cli import schedule_on_kubeflow

        if catch_up:
            raise UserError("The target kubeflow has no --catch-up: a schedule there never makes up for runs.")
        schedule_on_kubeflow.resume(schedule, options.kubeflow_settings(kubeflow_host, kubeflow_namespace))
        return
    from gpu_pipelines.targets.vertex import schedules as vertex_schedules

    settings = _settings(project, region)
    found = vertex_schedules.find(schedule, settings)
    vertex_schedules.resume(found["name"], settings, catch_up=catch_up)
    print(f"resumed {found['displayName']} ({vertex_schedules.id_of(found)})")


@app.command()
def delete(
    schedule: Schedule,
    target: options.Cloud = "vertex",
    project: options.Project = None,
    region: options.Region = None,
    kubeflow_host: options.KubeflowHost = None,
    kubeflow_namespace: options.KubeflowNamespace = None,
) -> None:
    """Delete a schedule. Runs that have begun go on."""
    if options.is_kubeflow(target):
        from gpu_pipelines.cli import schedule_on_kubeflow

        schedule_on_kubeflow.delete(schedule, options.kubeflow_settings(kubeflow_host, kubeflow_namespace))
        return
    from gpu_pipelines.targets.vertex import schedules as vertex_schedules

    settings = _settings(project, region)
    found = vertex_schedules.find(schedule, settings)
    vertex_schedules.delete(found["name"], settings)
    print(f"deleted {found['displayName']} ({vertex_schedules.id_of(found)})")


@app.command()
def update(
    schedule: Schedule,
    pipeline: Annotated[str | None, typer.Option(help="Another version: PACKAGE, PACKAGE/TAG, or its address.")] = None,
    cron: Annotated[str | None, typer.Option(metavar="EXPRESSION", help="Five fields.")] = None,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    time_zone: Zone = None,
    start: Start = None,
    end: End = None,
    max_runs: MaxRuns = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="Runs at the same time.")] = None,
    queue: Queue = None,
    param: options.Param = None,
    params: options.Params = None,
    repository: options.Repository = None,
    project: options.Project = None,
    region: options.Region = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show the request; change nothing.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Change a schedule on Vertex AI; what is not given stays, the parameters as well."""
    from gpu_pipelines.targets.cron import parse_cron
    from gpu_pipelines.targets.vertex import schedules as vertex_schedules
    from gpu_pipelines.targets.vertex.repository import find_version

    settings = _settings(project, region, repository)
    found = vertex_schedules.find(schedule, settings)
    present = parse_cron(found["cron"])
    when = present
    if cron or time_zone:
        when = parse_cron(cron or present.fields, time_zone or (None if cron and "TZ=" in cron else present.zone))
    begins, ends = time_of(start, when, "--start"), time_of(end, when, "--end")
    require_runs(when, begins, ends)
    job = None
    if pipeline or param or params:
        before = found["createPipelineJobRequest"]["pipelineJob"]
        version = find_version(pipeline, settings) if pipeline else None
        job = _changed_job(before, version, param or [], params)
    request = vertex_schedules.ScheduleRequest(
        name, when.text if when != present else None, begins, ends, max_runs, max_concurrent, queue, job
    )
    changes = request.to_json(settings)
    if not changes:
        raise UserError("Nothing is to be changed.", "Give what is to be, --cron say.")
    if dry_run:
        _show_request(changes, settings, found["name"])
        return
    _show(vertex_schedules.update(found["name"], request, settings), as_json, "changed")


def _settings(project: str | None, region: str | None, repository: str | None = None) -> ProjectSettings:
    from gpu_pipelines.project_settings import load_project_settings

    settings = load_project_settings({"project": project, "region": region, "repository": repository})
    settings.require("project", "region")
    return settings


def time_of(text: str | None, when: Cron, flag: str) -> datetime | None:
    """A point in time from the command line; None if it was not given."""
    from gpu_pipelines.targets.cron import parse_time

    return parse_time(text, when.zone, flag) if text else None


def require_runs(when: Cron, start: datetime | None, end: datetime | None) -> None:
    """Checks that at least one run falls due between two times.

    Raises:
        UserError: none does.
    """
    from gpu_pipelines.targets.cron import next_times

    if start and end and end <= start:
        raise UserError(f"--end {end.isoformat()} is not after --start {start.isoformat()}.")
    if not next_times(when, start, end, 1):
        raise UserError(
            f"No run of {when.text!r} is between --start and --end; nothing would ever run.", "Give a later --end."
        )


def _job(
    version: PipelineVersion,
    settings: ProjectSettings,
    assignments: Sequence[str],
    file: Path | None,
    cache: bool | None,
) -> dict[str, Any]:
    """What each run is, checked against the version's own file."""
    from gpu_pipelines.cli.data_check import warn_of_data
    from gpu_pipelines.cli.vertex_request import checked_arguments, of_the_project, show_cost
    from gpu_pipelines.targets.vertex.machines import machines_of
    from gpu_pipelines.targets.vertex.pipelines import parsed_spec, pipeline_job
    from gpu_pipelines.targets.vertex.repository import PipelineRepository

    spec = parsed_spec(PipelineRepository(version.repository).text(version), version.address)
    machines = machines_of(spec, settings.region)
    arguments = checked_arguments(spec, assignments, file, of_the_project(spec, settings))
    warn_of_data(spec, arguments)
    show_cost(machines, settings.region)
    return pipeline_job(spec, arguments, settings, cache=cache, template=version.address)


def _changed_job(
    before: dict[str, Any], version: PipelineVersion | None, assignments: Sequence[str], file: Path | None
) -> dict[str, Any]:
    """What each run is from now on: with another version, other parameters, or both; all else stays."""
    from gpu_pipelines.cli.data_check import warn_of_data
    from gpu_pipelines.cli.vertex_request import checked_arguments
    from gpu_pipelines.targets.vertex.pipelines import parsed_spec
    from gpu_pipelines.targets.vertex.repository import PipelineRepository

    spec, template = before["pipelineSpec"], before.get("templateUri")
    if version:
        spec = parsed_spec(PipelineRepository(version.repository).text(version), version.address)
        template = version.address
    values = before["runtimeConfig"].get("parameterValues", {})
    arguments = checked_arguments(spec, assignments, file, values)
    warn_of_data(spec, arguments)
    runtime = {**before["runtimeConfig"], "parameterValues": {n: v for n, v in arguments.items() if v is not None}}
    job = {**before, "pipelineSpec": spec, "runtimeConfig": runtime}
    return {**job, "templateUri": template} if template else job


def _show_request(body: dict[str, Any], settings: ProjectSettings, name: str | None = None) -> None:
    from gpu_pipelines.targets.vertex.connection import endpoint_of, location_of

    if name:
        method, url = "PATCH", f"{endpoint_of(settings)}/v1/{name}?updateMask={','.join(body)}"
    else:
        method, url = "POST", f"{endpoint_of(settings)}/v1/{location_of(settings)}/schedules"
    print(json.dumps({"method": method, "url": url, "body": body}, indent=2, ensure_ascii=False))


def _show(schedule: dict[str, Any], as_json: bool, done: str = "") -> None:
    if as_json:
        print(json.dumps(schedule, indent=2, ensure_ascii=False))
        return
    from gpu_pipelines.targets.cron import next_times, parse_cron, shown_time
    from gpu_pipelines.targets.vertex.console import schedule_page
    from gpu_pipelines.targets.vertex.schedules import id_of

    job = schedule["createPipelineJobRequest"]["pipelineJob"]
    when = parse_cron(schedule["cron"])
    start, end = _moment(schedule.get("startTime")), _moment(schedule.get("endTime"))
    lines = {
        done or "schedule": f"{schedule['displayName']} ({id_of(schedule)})",
        "state": schedule.get("state", "").lower(),
        "version": job.get("templateUri", "not from a repository"),
        "cron": schedule["cron"],
        "start": _shown(start, when),
        "end": _shown(end, when),
        "runs": _runs(schedule),
        "root": job["runtimeConfig"]["gcsOutputDirectory"],
    }
    for name, text in lines.items():
        print(f"{name:<9} {text}")
    if schedule.get("state") == "ACTIVE":
        for number, time in enumerate(next_times(when, start, end)):
            print(f"{'next runs' if number == 0 else '':<9} {shown_time(time)}")
    if not done:
        for number, (name, value) in enumerate(sorted(job["runtimeConfig"].get("parameterValues", {}).items())):
            # The service holds every number with a point.
            shown = f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
            print(f"{'' if number else 'with':<9} {name} = {shown}")
    print(f"{'console':<9} {schedule_page(schedule['name'])}")


def _runs(schedule: dict[str, Any]) -> str:
    limit = f" of at most {schedule['maxRunCount']}" if "maxRunCount" in schedule else ""
    waits = "; one that is due meanwhile waits" if schedule.get("allowQueueing") else ""
    return (
        f"{schedule.get('startedRunCount', 0)} so far{limit}, "
        f"{schedule.get('maxConcurrentRunCount', 1)} at the same time{waits}"
    )


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text[:19] + "+00:00") if text else None


def _shown(moment: datetime | None, when: Cron) -> str:
    from zoneinfo import ZoneInfo

    from gpu_pipelines.targets.cron import shown_time

    return shown_time(moment.astimezone(ZoneInfo(when.zone))) if moment else "none"

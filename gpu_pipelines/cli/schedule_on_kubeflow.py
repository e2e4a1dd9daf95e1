"""`gpu-pipelines schedule … --target kubeflow`: recurring runs of Kubeflow Pipelines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.project_settings import ProjectSettings


@dataclass(frozen=True)
class Timing:
    """When runs are to start, in the words of the command line; see the flags of the same names."""

    cron: str
    time_zone: str | None
    start: str | None
    end: str | None
    max_concurrent: int


def settings_for(
    host: str | None,
    namespace: str | None,
    experiment: str | None,
    pipeline_root: str | None,
    vertex_only: Mapping[str, Any],
) -> ProjectSettings:
    """The settings for a schedule.

    Args:
        host: `--kubeflow-host`.
        namespace: `--kubeflow-namespace`.
        experiment: `--experiment`.
        pipeline_root: `--pipeline-root`.
        vertex_only: values of the flags that only Vertex AI has.

    Raises:
        UserError: one of those was given, or the address is not known.
    """
    from gpu_pipelines.project_settings import load_project_settings

    if flags := [flag for flag, value in vertex_only.items() if value]:
        raise UserError(f"The target kubeflow has no {', '.join(flags)}.", "Leave it out; docs/kubeflow.md.")
    settings = load_project_settings(
        {
            "kubeflow_host": host,
            "kubeflow_namespace": namespace,
            "kubeflow_experiment": experiment,
            "pipeline_root": pipeline_root,
        }
    )
    settings.require("kubeflow_host")
    return settings


def create(
    pipeline: str,
    name: str,
    timing: Timing,
    settings: ProjectSettings,
    assignments: Sequence[str],
    file: Path | None,
    cache: bool | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Creates a recurring run of an uploaded version.

    Args:
        pipeline: `PIPELINE` or `PIPELINE/VERSION`.
        name: name of the schedule.
        timing: when runs start.
        settings: address, namespace, experiment.
        assignments: parameters as texts of the form `key=value`.
        file: a YAML file of parameters.
        cache: must be None: what a version caches is compiled into it.
        dry_run: print the request and send nothing.
        as_json: print one JSON document.

    Raises:
        UserError: lists what is wrong with the request; or the service refuses it.
    """
    from gpu_pipelines.cli.data_check import warn_of_data
    from gpu_pipelines.cli.kubeflow_request import checked_arguments
    from gpu_pipelines.cli.schedule import require_runs, time_of
    from gpu_pipelines.targets.cron import parse_cron
    from gpu_pipelines.targets.kubeflow import schedules as kubeflow_schedules
    from gpu_pipelines.targets.kubeflow.runs import DEFAULT_EXPERIMENT
    from gpu_pipelines.targets.kubeflow.uploads import find_version

    if cache is not None:
        raise UserError("What an uploaded version caches is compiled into it.", "Leave out --cache and --no-cache.")
    when = parse_cron(timing.cron, timing.time_zone)
    kubeflow_schedules.cron_with_seconds(when)
    start, end = time_of(timing.start, when, "--start"), time_of(timing.end, when, "--end")
    require_runs(when, start, end)
    version = find_version(pipeline, settings)
    request = kubeflow_schedules.RecurringRequest(
        name=name,
        when=when,
        start=start,
        end=end,
        max_concurrent=timing.max_concurrent,
        version=version,
        arguments=checked_arguments(version.spec, assignments, file, settings),
        experiment=settings.kubeflow_experiment or DEFAULT_EXPERIMENT,
        pipeline_root=settings.pipeline_root,
        service_account=settings.kubeflow_service_account,
    )
    warn_of_data(version.spec, request.arguments)
    if dry_run:
        url = f"{str(settings.kubeflow_host).rstrip('/')}/apis/v2beta1/recurringruns"
        print(json.dumps({"method": "POST", "url": url, "body": request.to_json()}, indent=2, ensure_ascii=False))
        return
    _show(kubeflow_schedules.create(request, settings), settings, as_json, "created")


def show(schedule: str, settings: ProjectSettings, as_json: bool) -> None:
    """Shows a schedule."""
    from gpu_pipelines.targets.kubeflow import schedules as kubeflow_schedules

    _show(kubeflow_schedules.find(schedule, settings), settings, as_json)


def show_all(settings: ProjectSettings, as_json: bool) -> None:
    """Lists all schedules."""
    from gpu_pipelines.targets.kubeflow import schedules as kubeflow_schedules

    found = kubeflow_schedules.all_schedules(settings)
    if as_json:
        print(json.dumps([kubeflow_schedules.as_json(each) for each in found], indent=2, ensure_ascii=False))
        return
    if not found:
        print("No schedules.")
        return
    from gpu_pipelines.cli.tables import Column, Table

    table = Table("name", "id", "state", Column("cron (seconds first)", spare=1))
    for each in found:
        table.add_row(each.display_name, each.recurring_run_id, _status(each), _cron(each))
    table.print()


def pause(schedule: str, settings: ProjectSettings) -> None:
    """Pauses a schedule."""
    from gpu_pipelines.targets.kubeflow import schedules as kubeflow_schedules

    found = kubeflow_schedules.find(schedule, settings)
    kubeflow_schedules.pause(found, settings)
    print(f"paused {found.display_name} ({found.recurring_run_id})")


def resume(schedule: str, settings: ProjectSettings) -> None:
    """Resumes a schedule."""
    from gpu_pipelines.targets.kubeflow import schedules as kubeflow_schedules

    found = kubeflow_schedules.find(schedule, settings)
    kubeflow_schedules.resume(found, settings)
    print(f"resumed {found.display_name} ({found.recurring_run_id})")


def delete(schedule: str, settings: ProjectSettings) -> None:
    """Deletes a schedule."""
    from gpu_pipelines.targets.kubeflow import schedules as kubeflow_schedules

    found = kubeflow_schedules.find(schedule, settings)
    kubeflow_schedules.delete(found, settings)
    print(f"deleted {found.display_name} ({found.recurring_run_id})")


def _show(found: Any, settings: ProjectSettings, as_json: bool, done: str = "") -> None:
    from gpu_pipelines.targets.kubeflow import schedules as kubeflow_schedules

    if as_json:
        print(json.dumps(kubeflow_schedules.as_json(found), indent=2, ensure_ascii=False))
        return
    lines = {
        done or "schedule": f"{found.display_name} ({found.recurring_run_id})",
        "state": _status(found),
        "cron": f"{_cron(found)} (seconds first, UTC)",
        "runs": f"{found.max_concurrency or 1} at the same time; none is made up for",
    }
    for name, text in lines.items():
        print(f"{name:<9} {text}")
    if not done and found.runtime_config:
        for number, (name, value) in enumerate(sorted((found.runtime_config.parameters or {}).items())):
            print(f"{'' if number else 'with':<9} {name} = {json.dumps(value, ensure_ascii=False)}")
    print(f"{'console':<9} {kubeflow_schedules.schedule_page(found.recurring_run_id, settings)}")


def _status(found: Any) -> str:
    status = str(found.status or found.mode or "").lower()
    return {"enabled": "active", "enable": "active", "disabled": "paused", "disable": "paused"}.get(status, status)


def _cron(found: Any) -> str:
    schedule = found.trigger.cron_schedule if found.trigger else None
    return str(schedule.cron) if schedule else "every so many seconds"

"""Recurring runs of Kubeflow Pipelines: created, found, paused, resumed, deleted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.cron import Cron
from gpu_pipelines.targets.kubeflow.connection import connect, namespace_of, quietly, service_errors
from gpu_pipelines.targets.kubeflow.runs import experiment_id, given
from gpu_pipelines.targets.kubeflow.uploads import UploadedVersion

_PAGE = 100
_NONE = "There are no schedules here; gpu-pipelines schedule create makes one."
#: Most runs at the same time that the service takes.
MOST_AT_A_TIME = 10


@dataclass(frozen=True)
class RecurringRequest:
    """A recurring run to be created.

    Attributes:
        name: its name.
        when: when it falls due.
        start: no run before; None for now.
        end: no run after; None for no end.
        max_concurrent: runs at the same time.
        version: what it runs.
        arguments: values of the pipeline's parameters.
        experiment: the experiment that runs are filed under.
        pipeline_root: where artifacts go; None for the cluster's default.
        service_account: Kubernetes service account of the pods; None for the default.
    """

    name: str
    when: Cron
    start: datetime | None
    end: datetime | None
    max_concurrent: int
    version: UploadedVersion
    arguments: Mapping[str, Any]
    experiment: str
    pipeline_root: str | None = None
    service_account: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The body of the request, as the REST API has it; the experiment by its name."""
        trigger = {
            "cron": cron_with_seconds(self.when),
            "start_time": _rfc3339(self.start),
            "end_time": _rfc3339(self.end),
        }
        body: dict[str, Any] = {
            "display_name": self.name,
            "experiment": self.experiment,
            "mode": "ENABLE",
            "max_concurrency": self.max_concurrent,
            "no_catchup": True,
            "trigger": {"cron_schedule": given(trigger)},
            "pipeline_version_reference": {
                "pipeline_id": self.version.pipeline_id,
                "pipeline_version_id": self.version.version_id,
            },
            "runtime_config": {"parameters": given(self.arguments), "pipeline_root": self.pipeline_root or ""},
        }
        return {**body, "service_account": self.service_account} if self.service_account else body


def cron_with_seconds(when: Cron) -> str:
    """A cron expression as Kubeflow Pipelines takes it: six fields, seconds first, Sunday as 0 alone.

    Format: https://pkg.go.dev/github.com/robfig/cron#hdr-CRON_Expression_Format

    Raises:
        UserError: it is meant in another time zone than UTC, in which the service reads it.
    """
    if when.zone not in ("UTC", "Etc/UTC"):
        raise UserError(
            f"Kubeflow Pipelines reads cron expressions in the time zone of its server, not in {when.zone}.",
            "Give the times in UTC, without --time-zone.",
        )
    *others, weekday = when.fields.split()
    return " ".join(["0", *others, ",".join(_weekday(part) for part in weekday.split(","))])


def _weekday(part: str) -> str:
    """A part of the last field in which Sunday is 0, where Unix also knows 7."""
    days, slash, step = part.partition("/")
    if days == "*":
        return part
    first, dash, last = days.partition("-")
    # A single day with a step goes on to the end of the week.
    end = int(last) if dash else (6 if slash else int(first))
    if max(int(first), end) < 7:
        return part
    return ",".join(dict.fromkeys(str(day % 7) for day in range(int(first), end + 1, int(step or 1))))


def create(request: RecurringRequest, settings: ProjectSettings) -> Any:
    """Creates a recurring run.

    Returns:
        The `V2beta1RecurringRun`.

    Raises:
        UserError: there is one of that name, or the service refuses it.
    """
    if request.max_concurrent > MOST_AT_A_TIME:
        raise UserError(f"Kubeflow Pipelines starts at most {MOST_AT_A_TIME} runs of a schedule at the same time.")
    client = connect(settings)
    if any(each.display_name == request.name for each in _all(client, settings)):
        raise UserError(f"There is a schedule {request.name!r} already.", "Give another --name, or delete it.")
    experiment = experiment_id(client, request.experiment, settings)
    with quietly(), service_errors(f"Creating the schedule {request.name}"):
        return client.create_recurring_run(
            experiment_id=experiment,
            job_name=request.name,
            cron_expression=cron_with_seconds(request.when),
            start_time=_rfc3339(request.start),
            end_time=_rfc3339(request.end),
            max_concurrency=request.max_concurrent,
            no_catchup=True,
            params=given(request.arguments),
            pipeline_id=request.version.pipeline_id,
            version_id=request.version.version_id,
            pipeline_root=request.pipeline_root,
            service_account=request.service_account,
        )


def all_schedules(settings: ProjectSettings) -> list[Any]:
    """All recurring runs, by name."""
    return sorted(_all(connect(settings), settings), key=lambda each: str(each.display_name))


def find(schedule: str, settings: ProjectSettings) -> Any:
    """The recurring run of a name or id.

    Raises:
        UserError: there is none, or several have the name.
    """
    there = all_schedules(settings)
    found = [each for each in there if schedule in (each.recurring_run_id, each.display_name)]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(str(each.recurring_run_id) for each in found)
        raise UserError(f"{len(found)} schedules have the name {schedule!r}.", f"Give the id: {ids}.")
    names = [str(each.display_name) for each in there]
    raise UserError(f"There is no schedule {schedule[:80]!r}.", nearest(schedule, names) if names else _NONE)


def pause(found: Any, settings: ProjectSettings) -> None:
    """Lets a recurring run start no more runs."""
    with service_errors(f"Pausing {found.display_name}"):
        connect(settings).disable_recurring_run(found.recurring_run_id)


def resume(found: Any, settings: ProjectSettings) -> None:
    """Lets a recurring run start runs again."""
    with service_errors(f"Resuming {found.display_name}"):
        connect(settings).enable_recurring_run(found.recurring_run_id)


def delete(found: Any, settings: ProjectSettings) -> None:
    """Deletes a recurring run."""
    with service_errors(f"Deleting {found.display_name}"):
        connect(settings).delete_recurring_run(found.recurring_run_id)


def schedule_page(schedule_id: str, settings: ProjectSettings) -> str:
    """The page of a recurring run in the user interface of Kubeflow Pipelines."""
    return f"{str(settings.kubeflow_host).rstrip('/')}/#/recurringrun/details/{schedule_id}"


def as_json(found: Any) -> dict[str, Any]:
    """A recurring run as the REST API has it."""
    import kfp_server_api

    document: dict[str, Any] = kfp_server_api.ApiClient().sanitize_for_serialization(found)
    return document


def _all(client: Any, settings: ProjectSettings) -> list[Any]:
    found: list[Any] = []
    token = ""
    with service_errors("Listing the schedules"):
        while True:
            page = client.list_recurring_runs(page_token=token, page_size=_PAGE, namespace=namespace_of(settings))
            found += page.recurring_runs or []
            token = page.next_page_token or ""
            if not token:
                return found


def _rfc3339(time: datetime | None) -> str | None:
    return time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if time else None

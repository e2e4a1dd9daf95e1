"""Schedules of Vertex AI Pipelines: created only once, and compared with the request after each change."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.connection import (
    REQUEST_SECONDS,
    answer_was_lost,
    location_of,
    schedule_service,
    service_errors,
    tried_again,
)
from gpu_pipelines.project_settings import ProjectSettings

#: Seconds after a lost answer before the service is asked what it did.
_UNTIL_SEEN = 2.0
#: Longest wait for the end of a deletion, seconds.
_DELETION = 300.0
#: Fields that the service may leave out of an answer if another one says the same.
_SPEC, _TEMPLATE = "pipelineSpec", "templateUri"


@dataclass(frozen=True)
class ScheduleRequest:
    """The fields of a schedule. None: not given, and in an update left as it is.

    Attributes:
        name: its display name.
        cron: when, with the time zone, in Vertex AI's form.
        start: the first run is not before; None for at once.
        end: the last run is not after; None for no end.
        max_runs: the schedule is completed after so many runs; None for no limit.
        max_concurrent: most runs at the same time.
        queue: whether a due run waits while the most runs are active, or is skipped.
        job: the `PipelineJob` of each run, as in the REST API.
    """

    name: str | None = None
    cron: str | None = None
    start: datetime | None = None
    end: datetime | None = None
    max_runs: int | None = None
    max_concurrent: int | None = None
    queue: bool | None = None
    job: Mapping[str, Any] | None = None

    def to_json(self, settings: ProjectSettings) -> dict[str, Any]:
        """The given fields, as in the REST API's `Schedule`."""
        together = None if self.max_concurrent is None else str(self.max_concurrent)
        fields = {
            "displayName": self.name,
            "cron": self.cron,
            "startTime": _timestamp(self.start),
            "endTime": _timestamp(self.end),
            "maxRunCount": None if self.max_runs is None else str(self.max_runs),
            # This field is required; it limits how many runs are being started, not how many are active.
            "maxConcurrentRunCount": together,
            "maxConcurrentActiveRunCount": together,
            "allowQueueing": self.queue,
            "createPipelineJobRequest": self.job and {"parent": location_of(settings), "pipelineJob": dict(self.job)},
        }
        return {name: value for name, value in fields.items() if value is not None}


def _timestamp(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def create(request: ScheduleRequest, settings: ProjectSettings) -> dict[str, Any]:
    """Creates a schedule, reads it back and compares it.

    The service gives a schedule its id, so a request whose answer is lost is not sent again: the schedule is searched
    by its name, which must be unique in the project and region.

    Returns:
        The schedule, as in the REST API.

    Raises:
        UserError: there is one of that name, the service refuses it, or it differs from the request.
    """
    name = str(request.name)
    if there := _named(name, settings):
        raise UserError(
            f"There is a schedule {name!r} already: {id_of(there[0])}.",
            "Change it with gpu-pipelines schedule update, or give another --name.",
        )
    client, message = schedule_service(settings), _message(request.to_json(settings))
    lost = "No schedule of that name is there yet. Look again with gpu-pipelines schedule list before you try again."
    with service_errors(f"Creating the schedule {name!r}", lost):
        try:
            created = client.create_schedule(
                parent=location_of(settings), schedule=message, timeout=REQUEST_SECONDS, retry=None
            ).name
        except Exception as error:
            if not answer_was_lost(error):
                raise
            time.sleep(_UNTIL_SEEN)
            made = _named(name, settings)
            if not made:
                raise
            created = made[0]["name"]
    return _as_asked(created, request, settings, "created")


def update(name: str, request: ScheduleRequest, settings: ProjectSettings) -> dict[str, Any]:
    """Changes the given fields of a schedule, reads it back and compares it.

    Args:
        name: full name of the schedule.
        request: the changes.
        settings: project and region.

    Returns:
        The schedule, as in the REST API.

    Raises:
        UserError: the service refuses it, or it differs from the request.
    """
    from google.protobuf.field_mask_pb2 import FieldMask

    changes = request.to_json(settings)
    message = _message({**changes, "name": name})
    mask = FieldMask()
    mask.FromJsonString(",".join(changes))
    with service_errors(f"Changing the schedule {id_of_name(name)}"):
        # Making a change twice has the same result.
        schedule_service(settings).update_schedule(
            schedule=message, update_mask=mask, timeout=REQUEST_SECONDS, retry=tried_again()
        )
    return _as_asked(name, request, settings, "changed")


def get(name: str, settings: ProjectSettings) -> dict[str, Any]:
    """A schedule by its full name, as in the REST API.

    Raises:
        UserError: there is no such schedule.
    """
    with service_errors(f"Looking at the schedule {id_of_name(name)}"):
        return _document(
            schedule_service(settings).get_schedule(name=name, timeout=REQUEST_SECONDS, retry=tried_again())
        )


def all_schedules(settings: ProjectSettings) -> list[dict[str, Any]]:
    """All schedules of the project in the region, as in the REST API.

    Raises:
        UserError: they cannot be read.
    """
    return _listed("", settings)


def find(what: str, settings: ProjectSettings) -> dict[str, Any]:
    """A schedule by its id, its full name or its display name.

    Raises:
        UserError: there is no such schedule, or several have that name.
    """
    if what.isdecimal() or what.startswith("projects/"):
        return get(what if "/" in what else f"{location_of(settings)}/schedules/{what}", settings)
    found = _named(what, settings)
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(id_of(schedule) for schedule in found)
        raise UserError(f"{len(found)} schedules are called {what!r}: {ids}.", "Give the id of one.")
    raise UserError(
        f"There is no schedule {what[:80]!r} in {settings.region}.", "gpu-pipelines schedule list shows the schedules."
    )


def pause(name: str, settings: ProjectSettings) -> None:
    """Stops a schedule from starting runs. Runs that have begun continue.

    Raises:
        UserError: the service refuses it.
    """
    _turn("Pausing", "PAUSED", settings, "pause_schedule", {"name": name})


def resume(name: str, settings: ProjectSettings, *, catch_up: bool) -> None:
    """Lets a paused schedule start runs again.

    Args:
        name: full name of the schedule.
        settings: project and region.
        catch_up: whether to also start runs that were due in the meantime.

    Raises:
        UserError: the service refuses it.
    """
    _turn("Resuming", "ACTIVE", settings, "resume_schedule", {"name": name, "catch_up": catch_up})


def delete(name: str, settings: ProjectSettings) -> None:
    """Deletes a schedule and waits for that. Runs that have begun continue.

    Raises:
        UserError: the service refuses it.
    """
    from google.api_core.exceptions import NotFound

    client = schedule_service(settings)
    tries = 0

    def send() -> None:
        nonlocal tries
        tries += 1
        client.delete_schedule(name=name, timeout=REQUEST_SECONDS, retry=None).result(timeout=_DELETION)

    with service_errors(f"Deleting the schedule {id_of_name(name)}"):
        try:
            tried_again()(send)()
        except NotFound:
            # An earlier try may have deleted it.
            if tries == 1:
                raise


def id_of(schedule: Mapping[str, Any]) -> str:
    """The last part of a schedule's name."""
    return id_of_name(str(schedule["name"]))


def id_of_name(name: str) -> str:
    """The last part of a full name."""
    return name.rpartition("/")[2]


def differences(asked: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The fields in which a schedule differs from the request, with both values.

    Args:
        asked: the fields that were sent, as in the REST API.
        found: the schedule as it was read back.
    """
    return [
        f"{path} is {_short(there)}, not {_short(wanted)}"
        for path, wanted, there in _compared("", _normal(asked), _normal(found))
    ]


def _normal(schedule: Mapping[str, Any]) -> dict[str, Any]:
    """A schedule with every value in the one form of the API's own types."""
    document = _document(_message({name: value for name, value in schedule.items() if name != "name"}))
    request = document.get("createPipelineJobRequest", {})
    if "parent" in request:
        # The service answers with the project's number if its id was sent.
        request["parent"] = request["parent"].partition("/locations/")[2]
    return document


def _compared(path: str, asked: Any, found: Any) -> Sequence[tuple[str, Any, Any]]:
    if not isinstance(asked, dict) or not isinstance(found, dict):
        return [] if asked == found else [(path, asked, found)]
    told: list[tuple[str, Any, Any]] = []
    for name, wanted in asked.items():
        if name == _SPEC and name not in found and found.get(_TEMPLATE) == asked.get(_TEMPLATE):
            continue
        told += _compared(f"{path}.{name}" if path else name, wanted, found.get(name))
    return told


def _short(value: Any) -> str:
    text = "missing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}…"


def _as_asked(name: str, request: ScheduleRequest, settings: ProjectSettings, done: str) -> dict[str, Any]:
    found = get(name, settings)
    if wrong := differences(request.to_json(settings), found):
        listed = "".join(f"\n  - {line}" for line in wrong)
        raise UserError(
            f"The schedule {id_of_name(name)} was {done}, but differs from the request:{listed}",
            f"Pause it until this is clear: gpu-pipelines schedule pause {id_of_name(name)}.",
        )
    return found


def _turn(what: str, state: str, settings: ProjectSettings, method: str, request: Mapping[str, Any]) -> None:
    """Brings a schedule into a state; if it is already in it, for example by an earlier try, nothing is done."""
    from google.api_core.exceptions import BadRequest

    name = str(request["name"])
    change = getattr(schedule_service(settings), method)

    def send() -> None:
        try:
            change(request=request, timeout=REQUEST_SECONDS, retry=None)
        except BadRequest:
            found = get(name, settings)
            # One that was resumed without it starts none of the missed runs.
            is_without = request.get("catch_up") and not found.get("catchUp")
            if found.get("state") != state or is_without:
                raise

    with service_errors(f"{what} the schedule {id_of_name(name)}"):
        tried_again()(send)()


def _named(name: str, settings: ProjectSettings) -> list[dict[str, Any]]:
    found = _listed(f"display_name={json.dumps(name, ensure_ascii=False)}", settings)
    return [schedule for schedule in found if schedule["displayName"] == name]


def _listed(wanted: str, settings: ProjectSettings) -> list[dict[str, Any]]:
    request = {"parent": location_of(settings), "filter": wanted}
    with service_errors("Listing schedules"):
        pages = schedule_service(settings).list_schedules(request=request, timeout=REQUEST_SECONDS, retry=tried_again())
        return [_document(schedule) for schedule in pages]


def _message(document: Mapping[str, Any]) -> Any:
    from google.cloud.aiplatform_v1.types import Schedule
    from google.protobuf import json_format

    message = Schedule()
    json_format.ParseDict(dict(document), Schedule.pb(message))
    return message


def _document(message: Any) -> dict[str, Any]:
    from google.protobuf import json_format

    found: dict[str, Any] = json_format.MessageToDict(type(message).pb(message))
    return found

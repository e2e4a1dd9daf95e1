"""The schedules of an emulator: listed, paused, resumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.console.emulator_client import EmulatorClient
from gpu_pipelines.errors import NotFoundError, UserError
from gpu_pipelines.targets.cron import next_times, parse_cron

_ID = re.compile(r"[a-z0-9-]{1,128}")
ACTIONS = ("pause", "resume")


@dataclass(frozen=True)
class Schedule:
    """A schedule.

    Attributes:
        id: the id of the schedule.
        name: for people.
        cron: the times at which it starts runs.
        state: active, paused or completed.
        next_run: the time of the next run; empty if there is none.
        started: the number of runs that it has started.
        last: id of its last run; empty if there is none.
    """

    id: str
    name: str
    cron: str
    state: str
    next_run: str
    started: int
    last: str


def schedules_of(client: EmulatorClient) -> list[Schedule]:
    """All schedules, the newest first."""
    return [
        Schedule(
            str(each["name"]).rpartition("/")[2],
            each.get("displayName", ""),
            each.get("cron", ""),
            str(each.get("state", "")).lower(),
            _next_run(each) if each.get("state") == "ACTIVE" else "",
            int(each.get("startedRunCount", 0)),
            str(each.get("lastScheduledRunResponse", {}).get("runResponse", "")).rpartition("/")[2],
        )
        for each in client.every(f"v1/{client.parent}/schedules", "schedules")
    ]


def _next_run(schedule: Mapping[str, Any]) -> str:
    """The time of a schedule's next run, from the service, else computed with the clock of this machine."""
    if said := str(schedule.get("nextRunTime", "")):
        return said
    try:
        times = next_times(parse_cron(schedule.get("cron", "")), None, None, 1)
    except UserError:
        return ""
    return times[0].isoformat() if times else ""


def turn(client: EmulatorClient, schedule: str, action: str) -> None:
    """Pauses or resumes a schedule.

    Raises:
        UserError: there is no such schedule, or it is already in that state.
    """
    if not _ID.fullmatch(schedule) or action not in ACTIONS:
        raise NotFoundError(f"There is no schedule {schedule[:80]!r}.", "It may have been deleted.")
    client.ask("POST", f"v1/{client.parent}/schedules/{schedule}:{action}", {})

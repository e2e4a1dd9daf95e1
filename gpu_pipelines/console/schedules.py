"""The schedules of an emulator: listed, paused, resumed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpu_pipelines.console.emulator_client import EmulatorClient
from gpu_pipelines.errors import NotFoundError

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
            str(each.get("nextRunTime", "")),
            int(each.get("startedRunCount", 0)),
            str(each.get("lastScheduledRunResponse", {}).get("runResponse", "")).rpartition("/")[2],
        )
        for each in client.every(f"v1/{client.parent}/schedules", "schedules")
    ]


def turn(client: EmulatorClient, schedule: str, action: str) -> None:
    """Pauses or resumes a schedule.

    Raises:
        UserError: there is no such schedule, or it is already in that state.
    """
    if not _ID.fullmatch(schedule) or action not in ACTIONS:
        raise NotFoundError(f"There is no schedule {schedule[:80]!r}.", "It may have been deleted.")
    client.ask("POST", f"v1/{client.parent}/schedules/{schedule}:{action}", {})

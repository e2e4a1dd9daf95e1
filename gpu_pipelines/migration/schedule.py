"""The longest run time of a job and the provisioning of its machines: `scheduling` of both services."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.accelerators.rules import MAX_HOURS
from gpu_pipelines.migration.notes import Notes

_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?s", re.ASCII)
#: The least seconds of `maxWaitTime` in AI Platform Training.
_SHORTEST_WAIT = 1800


@dataclass(frozen=True)
class Schedule:
    """When and how a job runs.

    Attributes:
        strategy: the provisioning of a plan: `spot`, or None for the standard one.
        timeout: in the API's form of durations; empty for the service's seven days.
        restart: whether the whole job restarts when a worker is restarted.
    """

    strategy: str | None = None
    timeout: str = ""
    restart: bool = False

    @property
    def hours(self) -> float | None:
        """The longest run time; None for the service's seven days."""
        return float(self.timeout.removesuffix("s")) / 3600 if self.timeout else None

    def fields(self) -> dict[str, Any]:
        """The field `scheduling` of the job; empty if all values are the service's defaults."""
        found: dict[str, Any] = {}
        if self.timeout:
            found["timeout"] = self.timeout
        if self.strategy == "spot":
            found["strategy"] = "SPOT"
        if self.restart:
            found["restartJobOnWorkerRestart"] = True
        return {"scheduling": found} if found else {}


def schedule(given: Mapping[str, Any], notes: Notes) -> Schedule:
    """The schedule of an old job; what the old service would have refused is refused."""
    timeout = _duration(given, "maxRunningTime", 0, notes)
    wait = _duration(given, "maxWaitTime", _SHORTEST_WAIT, notes)
    if timeout and float(timeout[:-1]) > MAX_HOURS * 3600:
        notes.refuse(f"scheduling.maxRunningTime is {timeout}; at most {MAX_HOURS} hours can be asked for.")
        timeout = ""
    if timeout:
        notes.changed("scheduling.maxRunningTime", f"It becomes scheduling.timeout, {timeout}.")
    if wait:
        notes.dropped(
            "scheduling.maxWaitTime",
            "Vertex AI has a longest wait for the strategy FLEX_START alone (maxWaitDuration).",
        )
    if given.get("priority"):
        notes.dropped("scheduling.priority", "Vertex AI has no priorities.")
    spot = given.get("strategy") == "LOW_COST"
    if spot:
        notes.changed("scheduling.strategy", "LOW_COST, which used preemptible machines, becomes SPOT.")
    if given.get("resilientToWorkerRestart"):
        notes.changed("scheduling.resilientToWorkerRestart", "It becomes scheduling.restartJobOnWorkerRestart.")
    return Schedule("spot" if spot else None, timeout, bool(given.get("resilientToWorkerRestart")))


def _duration(given: Mapping[str, Any], name: str, least: int, notes: Notes) -> str:
    text = str(given.get(name) or "")
    if not text:
        return ""
    if not _SECONDS.fullmatch(text):
        notes.refuse(f"scheduling.{name} is {text[:60]!r}; it is written in seconds, 7200s.")
    elif float(text[:-1]) <= 0 or float(text[:-1]) < least:
        notes.refuse(f"scheduling.{name} is {text}; it is {'more than 0' if not least else f'at least {least}s'}.")
    else:
        return text
    return ""

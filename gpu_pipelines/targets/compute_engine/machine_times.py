"""How long the VM of a run existed, from Compute Engine's own operations: each start of it is a try."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from gpu_pipelines.accelerators.spent import MachineTime

#: Compute Engine's operations after which a VM runs, and with which it stops. The latter come from a user, from Spot,
#: from inside, and from a machine that breaks; else the time of its stop counts:
#: https://cloud.google.com/compute/docs/logging/audit-logging, "System events".
_BEGIN = ("insert", "start", "resume", "compute.instances.automaticRestart")
_END = (
    *("stop", "delete", "suspend", "compute.instances.preempted", "compute.instances.guestTerminate"),
    *("compute.instances.hostError", "compute.instances.terminateOnHostMaintenance"),
)


def times_of_vm(
    machine: Mapping[str, Any], vm: Mapping[str, Any], operations: Sequence[Mapping[str, Any]], region: str, step: str
) -> list[MachineTime]:
    """The machine of a run, once for each of its starts.

    Args:
        machine: `machine`, `gpu`, `gpus` and `strategy`, as requested.
        vm: the VM as the service reports it now; empty if it is gone.
        operations: operations on the VM that the service still knows; it forgets them after weeks.
        region: region of the VM.
        step: name of the step in the account.
    """
    given = (str(machine["machine"]), str(machine["gpu"]), int(machine["gpus"]), 1)
    starts = list(_starts(vm, operations))
    return [
        MachineTime(
            step, f"start {number}" if len(starts) > 1 else "", *given, seconds, str(machine["strategy"]), region
        )
        for number, seconds in enumerate(starts, 1)
    ]


def _starts(vm: Mapping[str, Any], operations: Iterable[Mapping[str, Any]]) -> Iterator[float]:
    """The seconds that the VM ran after each start."""
    events = [
        (moment(each["endTime"]), each["operationType"] in _BEGIN)
        for each in operations
        if each.get("status") == "DONE" and not each.get("error") and each["operationType"] in (*_BEGIN, *_END)
    ]
    if not any(begins for _, begins in events):
        # The service forgot the operations, but for an existing VM it knows the last start and stop.
        events = [(moment(vm[name]), begins) for name, begins in _LAST if vm.get(name)]
    began: datetime | None = None
    for at, begins in [*sorted(events), *_last_stop(vm, events)]:
        if began is not None and not begins:
            yield max(0.0, (at - began).total_seconds())
            began = None
        elif began is None and begins:
            began = at
    if began is not None:
        yield max(0.0, (datetime.now(timezone.utc) - began).total_seconds())


_LAST = (("lastStartTimestamp", True), ("lastStopTimestamp", False))


def _last_stop(vm: Mapping[str, Any], events: Sequence[tuple[datetime, bool]]) -> list[tuple[datetime, bool]]:
    """A stop without an operation, such as at the VM's time limit."""
    stopped = moment(vm["lastStopTimestamp"]) if vm.get("lastStopTimestamp") else None
    return [(stopped, False)] if stopped and events and stopped > max(events)[0] else []


def moment(text: str) -> datetime:
    """A time in Compute Engine's format."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))

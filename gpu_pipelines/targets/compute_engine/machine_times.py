"""For how long the VM of a run was there, from Compute Engine's own operations: each start of it is a try."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from gpu_pipelines.accelerators.spent import MachineTime

#: What Compute Engine calls operations that a VM runs after, and those that it stops with. The latter come from whoever
#: stops it, from Spot, from within, and from a machine that breaks; else from the time of its stop:
#: https://cloud.google.com/compute/docs/logging/audit-logging, "System events".
_BEGIN = ("insert", "start", "resume", "compute.instances.automaticRestart")
_END = (
    *("stop", "delete", "suspend", "compute.instances.preempted", "compute.instances.guestTerminate"),
    *("compute.instances.hostError", "compute.instances.terminateOnHostMaintenance"),
)


def times_of_vm(
    machine: Mapping[str, Any], vm: Mapping[str, Any], operations: Sequence[Mapping[str, Any]], region: str, step: str
) -> list[MachineTime]:
    """The machine of a run, each of its starts by itself.

    Args:
        machine: `machine`, `gpu`, `gpus` and `strategy`, as they were asked for.
        vm: the VM as the service has it now; empty if it is gone.
        operations: those on the VM that the service still knows, which it forgets after weeks.
        region: where it is.
        step: what the time is of.
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
    """For how many seconds the VM ran after each start."""
    events = [
        (moment(each["endTime"]), each["operationType"] in _BEGIN)
        for each in operations
        if each.get("status") == "DONE" and not each.get("error") and each["operationType"] in (*_BEGIN, *_END)
    ]
    if not any(begins for _, begins in events):
        # Forgotten: of a VM that is still there, the last start and stop are known.
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
    """The stop that no operation tells of, such as at the VM's limit of time."""
    stopped = moment(vm["lastStopTimestamp"]) if vm.get("lastStopTimestamp") else None
    return [(stopped, False)] if stopped and events and stopped > max(events)[0] else []


def moment(text: str) -> datetime:
    """A time as Compute Engine writes it."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))

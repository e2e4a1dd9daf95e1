"""Whether what a training computes on does nothing, and for how long: a hang that nobody would see but on the bill."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpu_pipelines.errors import IdleError

#: Per cent of its time that a device works at least, else it does nothing. NVML says whole numbers of GPUs; threads
#: that only look now and then whether there is work take less than this of a core.
AT_WORK = 1.0
#: Per cent of a core with which processes get ready before a GPU has worked for the first time: they read, tokenize,
#: compile.
GETTING_READY = 10.0
_SECONDS_BETWEEN_LOOKS, _LEAST_LOOKS = 5.0, 12
_REMEDY = (
    "Its log says what it did last; it waits for data, for storage or for a process. Run it again to go on from its "
    "newest checkpoint. -p idle_stop=0 never stops a training for this."
)


class Utilization(Protocol):
    """Says how busy the devices of this node were since the last call."""

    def __call__(self, processes: Sequence[Any]) -> list[float] | None:
        """Per cent of each device, in the order of the local ranks; None where that cannot be known.

        Args:
            processes: those of the training on this node, as psutil knows them.
        """
        ...


class Idleness:
    """Watches the devices of this node.

    A device that has worked before, and then does not for so long, is enough: the processes of a training wait for each
    other, and a GPU that waits in a collective of NCCL is busy. One that has never worked, while others have, belongs
    to a program that leaves it out. Before any has worked, processes that get ready are not idle.

    Args:
        minutes: after so long a device is idle.
        names: of the devices, for messages, such as "rank 3".
        utilization: of the devices.
        readiness: of the processes, while no device has worked yet; None where that is the same.
        clock: seconds.
    """

    def __init__(
        self,
        minutes: float,
        names: Sequence[str],
        utilization: Utilization,
        readiness: Utilization | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit = 60 * minutes
        self._names, self._utilization, self._readiness, self._clock = names, utilization, readiness, clock
        self._between = min(_SECONDS_BETWEEN_LOOKS, self._limit / _LEAST_LOOKS)
        self.begin()

    def begin(self) -> None:
        """Says that the processes are started now."""
        self._ready_at = self._looked_at = self._clock()
        self._worked_at: dict[int, float] = {}

    def look(self, running: Callable[[], Sequence[Any]]) -> IdleError | None:
        """What is wrong, if a device is idle by now; to be called often.

        Args:
            running: gives the processes, as of `Utilization`; asked only when it is time to, because that takes long.
        """
        now = self._clock()
        if now - self._looked_at < self._between:
            return None
        self._looked_at, processes = now, running()
        shares = self._utilization(processes)
        if shares is None:
            return None
        self._worked_at |= {number: now for number, share in enumerate(shares) if share >= AT_WORK}
        if not self._worked_at and self._gets_ready(processes):
            self._ready_at = now
        idle = {number: now - at for number, at in self._worked_at.items()}
        if not idle:
            idle = dict.fromkeys(range(len(shares)), now - self._ready_at)
        longest = max(idle, key=lambda number: idle[number], default=None)
        return None if longest is None or idle[longest] < self._limit else self._error(longest, idle[longest], shares)

    def _gets_ready(self, processes: Sequence[Any]) -> bool:
        shares = self._readiness(processes) if self._readiness else None
        return max(shares or [0.0]) >= GETTING_READY

    def _error(self, number: int, seconds: float, shares: Sequence[float]) -> IdleError:
        named = dict(zip(self._names, shares, strict=False))
        now = ", ".join(f"{name} {share:.0f} %" for name, share in named.items())
        told = f"The training was stopped because {self._names[number]} did nothing for {_minutes(seconds)}."
        return IdleError(f"{told} Utilization now: {now}.", _REMEDY)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"

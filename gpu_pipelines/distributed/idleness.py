"""Whether the devices of a training are idle, and for how long: otherwise only the bill would show a hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpu_pipelines.errors import IdleError

#: Per cent of its time that a busy device works at least. NVML reports whole numbers for GPUs; threads that only look
#: now and then for work take less than this of a core.
AT_WORK = 1.0
#: Per cent of a core that processes need at least while they get ready, before a GPU has worked for the first time:
#: they read, tokenize, compile.
GETTING_READY = 10.0
_SECONDS_BETWEEN_LOOKS, _LEAST_LOOKS = 5.0, 12
_REMEDY = (
    "Its log says what it did last; it waits for data, for storage or for a process. Run it again to continue from its "
    "newest checkpoint. -p idle_stop=0 never stops a training for this."
)


class Utilization(Protocol):
    """Measures how busy the devices of this node were since the last call."""

    def __call__(self, processes: Sequence[Any]) -> list[float] | None:
        """Per cent of each device, in the order of the local ranks; None if that is not known.

        Args:
            processes: those of the training on this node, as psutil knows them.
        """
        ...


class Idleness:
    """Watches the devices of this node.

    One idle device that has worked before is enough: the processes of a training wait for each other, and a GPU that
    waits in a collective of NCCL is busy. A device that has never worked, while others have, is one that the program
    does not use. Before any has worked, processes that get ready are not idle.

    Args:
        minutes: time after which a device counts as idle.
        names: names of the devices, for messages, such as "rank 3".
        utilization: measures the devices.
        readiness: measures the processes until a device has worked; None if `utilization` does that.
        clock: gives seconds.
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
        """Notes that the processes are started now."""
        self._ready_at = self._looked_at = self._clock()
        self._worked_at: dict[int, float] = {}

    def look(self, running: Callable[[], Sequence[Any]]) -> IdleError | None:
        """The error if a device is idle by now; call it often.

        Args:
            running: gives the processes for `Utilization`; called only when it is time to, because it takes long.
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

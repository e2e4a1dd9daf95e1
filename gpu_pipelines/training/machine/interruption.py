"""An interruption (SIGTERM: Spot, maintenance, Ctrl-C of the launcher), on which all processes act at the same step."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from gpu_pipelines.distributed.peers import Timing
from gpu_pipelines.distributed.signals import noted_by_a_worker

#: Of short steps so many are taken before the processes tell each other again.
SECONDS_BETWEEN = 0.25
#: What the launcher gives a process to save its state, less a margin to write the marker in.
SECONDS_TO_STOP = Timing().stop - 3


class Interruption:
    """Whether any process has been asked to stop.

    The processes tell each other after a step, in the background of the next one: nobody waits, and all see the same
    answer at the same step, one step late.

    Args:
        group: a gloo group of all processes that is used for nothing else.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._every = 1
        self._steps = 0
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._shared: dist.Work | None = None
        self._agreed = False
        self._signalled = noted_by_a_worker()

    @property
    def is_known(self) -> bool:
        """Whether this process has been asked to stop, or knows of another one that has."""
        return bool(self._signalled) or self._agreed

    def seconds_left(self) -> float:
        """Seconds until the launcher kills this process, with a margin; all of them if it was not asked to stop."""
        since = self._signalled.since
        return SECONDS_TO_STOP - (time.monotonic() - since if since is not None else 0.0)

    def pace(self, seconds_per_step: float) -> None:
        """Makes the processes tell each other less often if steps are short.

        Args:
            seconds_per_step: the same number on all processes.
        """
        self._every = max(1, int(SECONDS_BETWEEN / max(seconds_per_step, 1e-6)))

    def agreed(self) -> bool:
        """Whether all should stop now; called by all processes after each step."""
        self._steps += 1
        if self._steps % self._every:
            return False
        stop = False
        if self._shared is not None:
            self._shared.wait()
            stop = bool(self._flag.item())
        self._flag.fill_(int(bool(self._signalled)))
        self._shared = dist.all_reduce(self._flag, group=self._group, async_op=True)
        self._agreed = self._agreed or stop
        return stop

    def settle(self) -> None:
        """Waits for messages under way; called before the processes end."""
        if self._shared is not None:
            self._shared.wait()

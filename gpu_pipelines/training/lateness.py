"""Who is late: how long processes wait for each other, and which one they waited for."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _set_pg_timeout

#: Until the first step processes compile, allocate and read; afterwards one that is so late on GPUs hangs.
#: Source: torchtitan, `comm.init_timeout_seconds` and `comm.train_timeout_seconds`.
FIRST_STEP, NEXT_STEPS = timedelta(minutes=5), timedelta(seconds=100)
_SECONDS_BETWEEN_NOTES = 1.0


class Progress:
    """How far this process is, told to the others about once a second.

    Args:
        store: that all processes of the training share.
        rank: of this process.
    """

    def __init__(self, store: Any, rank: int) -> None:
        self._store, self._rank = store, rank
        self._told = 0.0

    def note(self, step: int) -> None:
        """Tells that a step is done, if it is time to."""
        if time.monotonic() - self._told < _SECONDS_BETWEEN_NOTES:
            return
        self._told = time.monotonic()
        with suppress(RuntimeError):  # the machine of the store is gone, which the launcher will say
            self._store.set(_key(self._rank), json.dumps([step, time.time()]))


def bound(waiting: timedelta, mesh: DeviceMesh | None) -> None:
    """Bounds how long the collectives of the training wait from now on.

    Args:
        waiting: at most.
        mesh: over which the model is sharded, as `mesh_of` gives it; its groups have bounds of their own.
    """
    for group in {dist.group.WORLD, *(mesh.get_all_groups() if mesh else ())}:
        _set_pg_timeout(waiting, group)


def latest(store: Any, processes: int) -> str:
    """A sentence that names the process which is the furthest behind; empty where nobody is behind.

    Args:
        store: that all processes of the training share.
        processes: their number.
    """
    noted: dict[int, tuple[int, float]] = {}
    with suppress(RuntimeError):
        for rank in range(processes):
            if store.check([_key(rank)]):
                step, at = json.loads(store.get(_key(rank)))
                noted[rank] = step, at
    if len(noted) < processes:
        silent = [rank for rank in range(processes) if rank not in noted]
        return f"Rank {silent[0]} has not finished a step." if noted else ""
    slowest = min(noted, key=lambda rank: noted[rank])
    ago = max(at for _, at in noted.values()) - noted[slowest][1]
    if ago < 2 * _SECONDS_BETWEEN_NOTES:
        return ""
    heard = f"it was last heard of at step {noted[slowest][0]}, {ago:.0f} s before the others"
    return f"Rank {slowest} is the furthest behind: {heard}."


def _key(rank: int) -> str:
    return f"progress/{rank}"

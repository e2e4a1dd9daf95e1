"""Late processes: how long processes wait for each other, and for which one."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh

#: Until the first step processes compile, allocate and read; afterwards one that is so late on GPUs hangs.
#: Source: torchtitan, `comm.init_timeout_seconds` and `comm.train_timeout_seconds`.
FIRST_STEP, NEXT_STEPS = timedelta(minutes=5), timedelta(seconds=100)
#: So long after the last step has begun rank 0 says who is late. NCCL ends a process without a word of it.
SECONDS_UNTIL_TOLD = 60.0
_SECONDS_BETWEEN_NOTES = 1.0
# It is public from PyTorch 2.14 on, where the former name warns.
_set_timeout: Any = getattr(dist, "set_timeout", None) or distributed_c10d._set_pg_timeout


class Progress:
    """The progress of this process. A thread tells it to the others, even while the process itself waits for them.

    Args:
        store: that all processes of the training share.
        rank: of this process.
        processes: their number.
        patience: seconds after which rank 0 says which process is late.
    """

    def __init__(self, store: Any, rank: int, processes: int, patience: float = SECONDS_UNTIL_TOLD) -> None:
        self._store, self._rank, self._processes, self._patience = store, rank, processes, patience
        self._step, self._at = 0, time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True, name="progress")
        self._thread.start()

    def note(self, step: int) -> None:
        """Notes that this process has the rows of a step, counted from 1, and computes it now."""
        self._step, self._at = step, time.monotonic()

    def close(self) -> None:
        """Ends the thread after it has told the last step."""
        self._over.set()
        self._thread.join(2 * _SECONDS_BETWEEN_NOTES)

    def _tell(self) -> None:
        told = warned = 0
        over = False
        while not over:
            over = self._over.wait(min(_SECONDS_BETWEEN_NOTES, self._patience))
            step, seconds = self._step, time.monotonic() - self._at
            try:
                if step != told:
                    self._store.set(_key(self._rank), str(step))
                    told = step
                elif self._rank == 0 and step > warned and seconds > self._patience:
                    warned = step
                    if late := latest(self._store, self._processes):
                        print(f"warning: no step has begun for {seconds:.0f} s. {late}", flush=True)
            except RuntimeError:  # the machine of the store is gone, which the launcher will say
                return


def bound(waiting: timedelta, mesh: DeviceMesh | None) -> None:
    """Bounds how long the collectives of the training wait from now on.

    Args:
        waiting: at most.
        mesh: over which the model is sharded, from `mesh_of`; its groups have bounds of their own.
    """
    for group in {dist.group.WORLD, *(mesh.get_all_groups() if mesh else ())}:
        _set_timeout(waiting, group)


def latest(store: Any, processes: int) -> str:
    """A sentence that names the process furthest behind; empty if none is behind.

    Args:
        store: that all processes of the training share.
        processes: their number.
    """
    begun: dict[int, int] = {}
    with suppress(RuntimeError):
        for rank in range(processes):
            begun[rank] = int(store.get(_key(rank))) if store.check([_key(rank)]) else 0
    last, first = min(begun.values(), default=0), max(begun.values(), default=0)
    if last == first:
        return ""
    rank = min(begun, key=lambda rank: begun[rank])
    reached = f"step {last}" if last else "no step"
    return f"Rank {rank} is the furthest behind: it has begun {reached}, and others step {first}."


def _key(rank: int) -> str:
    return f"progress/{rank}"

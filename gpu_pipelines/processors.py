"""The processor cores of this machine that this process may use."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

#: The files of a container with its CPU limit.
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """The number of cores that this process may use: of the machine, or of its container if that has a limit."""
    # macOS does not bind processes to cores.
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(found, _limit(_CONTROL_GROUP))))


def _limit(group: Path) -> float:
    """Core seconds for each second, as set by `docker run --cpus` and Kubernetes limits; Python does not know them.

    Sources: the kernel's admin-guide/cgroup-v2, "cpu.max"; scheduler/sched-bwc for cgroup v1.
    """
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        used, whole = (int((group / "cpu" / name).read_text(encoding="ascii")) for name in names)
        return used / whole if used > 0 else math.inf
    return math.inf


def own_cores() -> int:
    """The share of this process if a launcher has started several on this machine; at least one."""
    return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def compute_on_cores_alone() -> None:
    """Has PyTorch compute with no more threads than there are cores; it does not know the limit of a container."""
    import torch  # takes seconds

    torch.set_num_threads(min(torch.get_num_threads(), cores()))

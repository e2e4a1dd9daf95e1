"""The processor cores of this machine, as far as this process may use them."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

#: Where a container finds how much of the cores it may use.
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """The cores that this process may use: of the machine, or of its container where that has a limit."""
    # macOS binds no process to cores.
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(found, _limit(_CONTROL_GROUP))))


def _limit(group: Path) -> float:
    """Seconds of a core for each second, as `docker run --cpus` and a limit of Kubernetes set it; found nowhere else.

    Sources: the kernel's admin-guide/cgroup-v2, "cpu.max"; scheduler/sched-bwc of the version before.
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
    """The share of this process where a launcher has started several on this machine; at least one."""
    return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))

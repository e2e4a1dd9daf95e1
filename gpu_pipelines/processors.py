"""The processor cores of this machine, as far as this process may use them."""

from __future__ import annotations

import os


def cores() -> int:
    """The cores that this process may use."""
    # macOS binds no process to cores.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_cores() -> int:
    """The share of this process where a launcher has started several on this machine; at least one."""
    return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))

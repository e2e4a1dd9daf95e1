"""What a benchmark says of the machine that it ran on."""

from __future__ import annotations

import os
import platform


def machine() -> dict[str, str | int]:
    """Cores that this process may use, architecture and version of Python."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"cores": cores, "architecture": platform.machine(), "python": platform.python_version()}

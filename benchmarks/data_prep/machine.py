"""The description of the machine in the results of a benchmark."""

from __future__ import annotations

import platform

from gpu_pipelines.processors import cores


def machine() -> dict[str, str | int]:
    """Cores that this process may use, architecture and Python version."""
    return {"cores": cores(), "architecture": platform.machine(), "python": platform.python_version()}

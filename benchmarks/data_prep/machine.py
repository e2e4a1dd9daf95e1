"""What a benchmark says of the machine that it ran on."""

from __future__ import annotations

import platform

from gpu_pipelines.processors import cores


def machine() -> dict[str, str | int]:
    """Cores that this process may use, architecture and version of Python."""
    return {"cores": cores(), "architecture": platform.machine(), "python": platform.python_version()}

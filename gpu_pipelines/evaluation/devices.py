"""On what models are evaluated: all GPUs of the machine, one process for each, else CPU processes."""

from __future__ import annotations

import os

from gpu_pipelines.accelerators import plan
from gpu_pipelines.step_environment import ACCELERATOR, REHEARSE

CPU_PROCESSES = 2


def evaluation_devices(gpus_visible: int, processes: int | None = None) -> list[str]:
    """The device of each process, in the terms of torch; the first is that of this process.

    Args:
        gpus_visible: number of GPUs that torch sees.
        processes: how many of them, or of CPU processes; None for all GPUs, or for as many CPU processes as the
            training has.
    """
    if gpus_visible and not os.environ.get(REHEARSE, ""):
        return [f"cuda:{index}" for index in range(min(gpus_visible, processes or gpus_visible))]
    return ["cpu"] * (processes or _cpu_processes())


def _cpu_processes() -> int:
    spec = os.environ.get(REHEARSE, "") or os.environ.get(ACCELERATOR, "")
    planned = plan(spec) if spec else None
    return planned.count if planned is not None and planned.is_local else CPU_PROCESSES

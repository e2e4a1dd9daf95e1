"""How many processes train on this machine, and on what."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.environment import ACCELERATOR

CPU_PROCESSES = 2
MOST_CPU_PROCESSES = 64


@dataclass(frozen=True)
class Devices:
    """`processes` processes on devices of `kind` "cuda" or "cpu"."""

    kind: str
    processes: int


def local_devices(gpus_visible: int) -> Devices:
    """What the target asked for in the variable `GPU_PIPELINES_ACCELERATOR`, else all GPUs, else two CPU processes.

    Args:
        gpus_visible: number of GPUs that torch sees.

    Raises:
        UserError: the variable does not hold what this machine can give.
    """
    asked = os.environ.get(ACCELERATOR, "")
    if not asked:
        return Devices("cuda", gpus_visible) if gpus_visible else Devices("cpu", CPU_PROCESSES)
    return Devices("cpu", cpu_processes(asked))


def cpu_processes(spec: str) -> int:
    """The N of `cpu:N`.

    Raises:
        UserError: the text is not of that form, or N is out of range.
    """
    match = re.fullmatch(r"cpu:([0-9]{1,4})", spec.strip().lower())
    if not match or not 1 <= int(match[1]) <= MOST_CPU_PROCESSES:
        raise UserError(
            f"The accelerator {spec[:40]!r} is not one of this machine.",
            f"Give cpu:1 to cpu:{MOST_CPU_PROCESSES}, or leave it out for all GPUs that are here.",
        )
    return int(match[1])

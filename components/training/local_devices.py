"""How many processes train on this machine, and on what."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpu_pipelines.accelerators import plan
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.environment import ACCELERATOR

CPU_PROCESSES = 2


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
    planned = plan(asked)
    if planned.is_local:
        return Devices("cpu", planned.count)
    if gpus_visible != planned.count:
        raise UserError(
            f"The step was placed on {planned.spec}, but PyTorch sees {gpus_visible} GPUs.",
            "Check the machine type, the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES.",
        )
    return Devices("cuda", planned.count)

"""How many processes train on this machine, and on what."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpu_pipelines.accelerators import plan
from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import ACCELERATOR, REHEARSE
from gpu_pipelines.training.machine_checks import build_problem, shared_memory_problem

CPU_PROCESSES = 2


@dataclass(frozen=True)
class Devices:
    """`processes` processes on devices of `kind` "cuda" or "cpu"; a rehearsal stands in for GPUs that are not here."""

    kind: str
    processes: int
    rehearsal: bool = False


def local_devices(gpus_visible: int) -> Devices:
    """What the target asked for in the variable `GPU_PIPELINES_ACCELERATOR`, else all GPUs, else two CPU processes.

    `GPU_PIPELINES_REHEARSE=cpu:N` wins over both.

    Args:
        gpus_visible: number of GPUs that torch sees.

    Raises:
        UserError: the variable does not hold what this machine can give.
    """
    if rehearse := os.environ.get(REHEARSE, ""):
        return _rehearsal(rehearse)
    asked = os.environ.get(ACCELERATOR, "")
    if not asked:
        return Devices("cuda", gpus_visible) if gpus_visible else Devices("cpu", CPU_PROCESSES)
    planned = plan(asked)
    if planned.is_local:
        return Devices("cpu", planned.count)
    if gpus_visible != planned.count:
        raise UserError(
            f"The step was placed on {planned.spec}, but PyTorch sees {gpus_visible} GPUs.",
            "Check the machine type, the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES; "
            f"to rehearse without GPUs, set {REHEARSE}=cpu:2.",
        )
    return Devices("cuda", planned.count)


def _rehearsal(spec: str) -> Devices:
    planned = plan(spec)
    if not planned.is_local:
        raise UserError(f"{REHEARSE} is {spec!r}; a rehearsal is on CPU processes.", "Give cpu:N, such as cpu:2.")
    print(f"REHEARSAL: {planned.count} CPU processes in place of the accelerators ({REHEARSE}={spec})", flush=True)
    return Devices("cpu", planned.count, rehearsal=True)


def require_devices_work(devices: Devices) -> None:
    """Checks what is known to fail later and less clearly; prints a warning for what may.

    Raises:
        UserError: this build of PyTorch cannot run on the GPUs, or they cannot talk to each other.
    """
    if devices.kind != "cuda":
        return
    import torch

    problems = [
        build_problem(
            torch.cuda.get_device_name(index),
            torch.cuda.get_device_capability(index),
            torch.cuda.get_arch_list(),
            torch.__version__,
        )
        for index in range(devices.processes)
    ]
    error, warning = shared_memory_problem(devices.processes)
    if found := sorted({problem for problem in [*problems, error] if problem}):
        raise UserError.of_all(found)
    if warning:
        print(f"warning: {warning}", flush=True)

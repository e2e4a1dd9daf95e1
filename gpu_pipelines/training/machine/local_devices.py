"""How many processes train on this machine, on which devices, and whether its GPUs work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_pipelines.accelerators import plan
from gpu_pipelines.accelerators.catalog import load_catalog
from gpu_pipelines.component_interface.accelerate import wish_of
from gpu_pipelines.errors import InvalidRequestError, UserError
from gpu_pipelines.step_environment import ACCELERATOR, REHEARSE

CPU_PROCESSES = 2
#: What Docker gives a container that does not ask for more; NCCL fails on it with several GPUs. It asks for 1 GB:
#: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html, "Shared memory".
TOO_LITTLE_SHARED_MEMORY = 64 << 20
SHARED_MEMORY_WANTED = 1 << 30
#: Set in the steps of Vertex AI and of Kubeflow, and not where KFP's own local runner runs them.
_IN_A_CLUSTER = ("CLOUD_ML_PROJECT_ID", "KFP_POD_NAME")


@dataclass(frozen=True)
class Devices:
    """`processes` processes on devices of `kind` "cuda" or "cpu"; a rehearsal stands in for GPUs that are not here."""

    kind: str
    processes: int
    rehearsal: bool = False


def local_devices(gpus_visible: int) -> Devices:
    """The devices in the variable `GPU_PIPELINES_ACCELERATOR` of the target, else all GPUs, else two CPU processes.

    `GPU_PIPELINES_REHEARSE=cpu:N` wins over both.

    Args:
        gpus_visible: number of GPUs that torch sees.

    Raises:
        UserError: the variable does not hold what this machine can give, or what `accelerate` has asked for was passed
            over.
    """
    if rehearse := os.environ.get(REHEARSE, ""):
        return _rehearsal(rehearse)
    asked = os.environ.get(ACCELERATOR, "")
    if not asked:
        if not gpus_visible:
            _require_placed()
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


def _require_placed() -> None:
    """Days of training on the CPUs of a cluster would be the first sign of a pipeline that nobody has placed."""
    wish = wish_of(os.environ)
    if wish is not None and any(os.environ.get(name) for name in _IN_A_CLUSTER):
        raise InvalidRequestError(
            f"accelerate has asked for {wish.spec or 'GPUs'} for this step, and it has none: KFP's own compiler "
            "ignores accelerate.",
            "Compile the pipeline with gpu_pipelines.compile, or with gpu-pipelines compile; or call "
            "set_accelerator_type and set_accelerator_limit on the task.",
        )


def _rehearsal(spec: str) -> Devices:
    planned = plan(spec)
    if not planned.is_local:
        raise UserError(f"{REHEARSE} is {spec!r}; a rehearsal runs on CPU processes.", "Give cpu:N, such as cpu:2.")
    print(f"REHEARSAL: {planned.count} CPU processes in place of the accelerators ({REHEARSE}={spec})", flush=True)
    return Devices("cpu", planned.count, rehearsal=True)


def require_devices_work(devices: Devices) -> None:
    """Checks for problems that would show later and less clearly; prints a warning for possible ones.

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


def shared_memory_problem(gpus: int, directory: Path = Path("/dev/shm")) -> tuple[str, str]:  # noqa: S108
    """Problems with the shared memory through which the GPUs of a machine communicate.

    Args:
        gpus: number of GPUs.
        directory: where it is mounted.

    Returns:
        An error and a warning, each empty if there is none.
    """
    if gpus < 2 or os.environ.get("NCCL_SHM_DISABLE") == "1":
        return "", ""
    status = os.statvfs(directory)
    size = status.f_frsize * status.f_blocks
    text = (
        f"{directory} has {size / (1 << 20):,.0f} MiB, and NCCL shares memory between {gpus} GPUs there. "
        "Start the container with --shm-size=1g, or mount an emptyDir with medium: Memory."
    )
    if size <= TOO_LITTLE_SHARED_MEMORY:
        return text, ""
    return "", text if size < SHARED_MEMORY_WANTED else ""


def build_problem(name: str, capability: tuple[int, int], built_for: Sequence[str], torch_version: str) -> str:
    """Why this build of PyTorch cannot run on a GPU; empty if it can.

    A binary for sm_XY runs on the same major version with the same or a higher minor one; PTX (compute_XY) is compiled
    for any later GPU. Source: CUDA C++ Programming Guide, "Binary compatibility" and "PTX compatibility".

    Args:
        name: the GPU.
        capability: its compute capability.
        built_for: `torch.cuda.get_arch_list()`.
        torch_version: `torch.__version__`.
    """
    for entry in built_for:
        kind, _, digits = entry.partition("_")
        digits = digits.rstrip("af")
        has = (int(digits[:-1]), int(digits[-1]))
        if (kind == "sm" and has[0] == capability[0] and has <= capability) or (
            kind == "compute" and has <= capability
        ):
            return ""
    known = {gpu.pytorch for gpu in load_catalog().gpus.values() if gpu.compute_capability == _text(capability)}
    remedy = f"It needs: {sorted(known)[0]}." if known and any(known) else "Take another image or another GPU."
    return (
        f"PyTorch {torch_version} was not built for the {name} (compute capability {_text(capability)}; "
        f"the build has {', '.join(built_for) or 'no CUDA'}). {remedy}"
    )


def _text(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"

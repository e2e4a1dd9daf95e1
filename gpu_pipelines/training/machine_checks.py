"""What is checked in the first second of a training, before any data is read: is this the machine that was chosen?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gpu_pipelines.accelerators.catalog import load_catalog

#: What Docker gives a container that does not ask for more; NCCL fails on it with several GPUs. It asks for 1 GB:
#: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html, "Shared memory".
TOO_LITTLE_SHARED_MEMORY = 64 << 20
SHARED_MEMORY_WANTED = 1 << 30


def shared_memory_problem(gpus: int, directory: Path = Path("/dev/shm")) -> tuple[str, str]:  # noqa: S108
    """What is wrong with the shared memory through which the GPUs of a machine talk.

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

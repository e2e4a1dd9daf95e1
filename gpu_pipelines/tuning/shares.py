"""How trials that are trained at the same time share the GPUs or the CPUs of a machine."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpu_pipelines.processors import cores
from gpu_pipelines.step_environment import ACCELERATOR, REHEARSE
from gpu_pipelines.training.local_devices import Devices, local_devices


@dataclass(frozen=True)
class Share:
    """What one trial gets.

    Attributes:
        processes: that train it.
        variables: of the environment; those that are empty are taken out.
    """

    processes: int
    variables: dict[str, str]


def shares_of_this_machine(parallel: int) -> list[Share]:
    """A share for each of so many trials.

    Raises:
        UserError: what the environment says of the devices is wrong.
    """
    import torch

    visible = torch.cuda.device_count()
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return shares_of(local_devices(visible), parallel, names or [str(number) for number in range(visible)])


def shares_of(devices: Devices, parallel: int, names: list[str]) -> list[Share]:
    """A share of some devices for each of so many trials; GPUs that are fewer than these are used by several at once.

    Args:
        devices: of the machine.
        parallel: number of trials.
        names: of its GPUs, as CUDA_VISIBLE_DEVICES has them.
    """
    each = max(1, devices.processes // parallel)
    threads = str(max(1, cores() // (parallel * each)))
    if devices.kind == "cuda":
        return [
            Share(
                each,
                {
                    "CUDA_VISIBLE_DEVICES": ",".join(names[(slot * each + i) % len(names)] for i in range(each)),
                    "OMP_NUM_THREADS": threads,
                    ACCELERATOR: "",
                },
            )
            for slot in range(parallel)
        ]
    spec = f"cpu:{each}"
    rehearse = {REHEARSE: spec} if devices.rehearsal else {}
    return [Share(each, {ACCELERATOR: spec, "OMP_NUM_THREADS": threads, **rehearse}) for _ in range(parallel)]

"""Shares the GPUs or the CPUs of a machine among parallel trials."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gpu_pipelines.processors import cores
from gpu_pipelines.step_environment import ACCELERATOR, REHEARSE
from gpu_pipelines.training.machine.local_devices import Devices, local_devices


@dataclass(frozen=True)
class Share:
    """The share of one trial.

    Attributes:
        processes: the processes that train it.
        variables: environment variables; empty ones are removed.
    """

    processes: int
    variables: dict[str, str]


def shares_of_this_machine(parallel: int) -> list[Share]:
    """A share for each of several trials.

    Raises:
        UserError: the environment describes the devices wrongly.
    """
    import torch

    visible = torch.cuda.device_count()
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return shares_of(local_devices(visible), parallel, names or [str(number) for number in range(visible)])


def shares_of(devices: Devices, parallel: int, names: list[str]) -> list[Share]:
    """A share of some devices for each of several trials; if there are fewer GPUs than trials, trials share them.

    Args:
        devices: the devices of the machine.
        parallel: number of trials.
        names: names of its GPUs, as in CUDA_VISIBLE_DEVICES.
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

"""Which machine carries the GPUs when the user leaves it open, and why that one."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_pipelines.accelerators.catalog import Gpu, MachineType

#: One vCPU for the training process of each GPU and one for the process that feeds it.
VCPUS_PER_GPU = 2


def enough_memory_gb(gpu: Gpu, count: int, asked_gb: float | None) -> float:
    """The main memory a machine should have, GB: what was asked for, or as much as its GPUs have together.

    A checkpoint or a model on its way to the GPUs passes through main memory once.
    """
    return asked_gb if asked_gb is not None else float(gpu.memory_gb * count)


def choose_machine(
    gpu: Gpu, count: int, candidates: Sequence[MachineType], asked_gb: float | None
) -> tuple[MachineType, str]:
    """The smallest of the candidates that has enough main memory and vCPUs, and the sentence that says why.

    Args:
        gpu: the GPU.
        count: GPUs per machine.
        candidates: machines that carry them, the smallest first; not empty, and all with the memory asked for, if any.
        asked_gb: main memory asked for, GB; None if the user left it open.
    """
    if len(candidates) == 1 and asked_gb is None:
        return candidates[0], f"{candidates[0].name} is the machine with {count} × {gpu.name}."
    wanted = enough_memory_gb(gpu, count, asked_gb)
    vcpus = VCPUS_PER_GPU * count
    why = "as asked" if asked_gb is not None else f"as much as {count} × {gpu.name} have"
    fitting = [machine for machine in candidates if machine.memory_gb >= wanted and machine.vcpus >= vcpus]
    if fitting:
        chosen = fitting[0]
        return chosen, (
            f"{chosen.name} is the smallest machine for {count} × {gpu.name} with at least {wanted:g} GB of main "
            f"memory ({why}) and {vcpus} vCPUs ({VCPUS_PER_GPU} for each GPU): it has {chosen.memory_gb:g} GB and "
            f"{chosen.vcpus} vCPUs."
        )
    chosen = max(candidates, key=lambda machine: (machine.memory_gb, -machine.vcpus))
    return chosen, (
        f"{chosen.name} has the most main memory ({chosen.memory_gb:g} GB) of the machines for {count} × {gpu.name}; "
        f"none has {wanted:g} GB ({why}) and {vcpus} vCPUs."
    )

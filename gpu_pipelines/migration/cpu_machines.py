"""Machines without GPUs: which of the old ones Vertex AI training still takes."""

from __future__ import annotations

from gpu_pipelines.accelerators.catalog import Catalog
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.migration.legacy_machines import LEGACY_MACHINES

#: vCPUs and GB of N1 machines that Compute Engine has and Vertex AI training does not take.
_TOO_SMALL = {
    "n1-standard-1": (1, 3.75),
    "n1-standard-2": (2, 7.5),
    "n1-highcpu-2": (2, 1.8),
    "n1-highcpu-4": (4, 3.6),
    "n1-highcpu-8": (8, 7.2),
}


def cpu_machine(name: str, where: str, catalog: Catalog) -> tuple[str, str]:
    """The machine to take for one that has no GPUs, and a sentence on why it is another; empty if it is the same.

    Args:
        name: machine type of Compute Engine.
        where: its field, for messages.
        catalog: the facts.

    Raises:
        UserError: there is no such machine.
    """
    if name in _TOO_SMALL:
        return _smallest_with(name, catalog)
    if catalog.takes_without_gpus(name):
        return name, ""
    names = [*LEGACY_MACHINES, *(each for each, machine in catalog.machine_types.items() if machine.attached)]
    raise UserError(f"{where} is {name[:60]!r}, which AI Platform Training did not have. {nearest(name, names)}")


def _smallest_with(name: str, catalog: Catalog) -> tuple[str, str]:
    vcpus, memory_gb = _TOO_SMALL[name]
    machines = sorted(
        (m for m in catalog.machine_types.values() if m.attached and m.vcpus >= vcpus and m.memory_gb >= memory_gb),
        key=lambda machine: (machine.vcpus, machine.memory_gb),
    )
    chosen = machines[0]
    return chosen.name, (
        f"Vertex AI training does not take {name} ({vcpus} vCPUs, {memory_gb:g} GB); {chosen.name} is the smallest N1 "
        f"machine with as much ({chosen.vcpus} vCPUs, {chosen.memory_gb:g} GB)."
    )

"""Machines of old jobs: AI Platform Training's own types, and which of Compute Engine's Vertex AI training takes.

Of the own types some brought GPUs; Vertex AI has none of them.

Source: GPUs are those of Google's page on GPUs for AI Platform Training; machines are those of the old documentation's
table of machine types, from general knowledge for those with V100.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_pipelines.accelerators.catalog import Catalog
from gpu_pipelines.errors import UserError, nearest


@dataclass(frozen=True)
class LegacyMachine:
    """What a legacy machine type stood for.

    Attributes:
        machine_type: machine type of Compute Engine.
        accelerator: type and number of the GPUs that it brought.
        verified: whether the machine is in a copy of Google's table.
    """

    machine_type: str
    accelerator: tuple[str, int] | None = None
    verified: bool = True


_K80, _P100, _V100 = "NVIDIA_TESLA_K80", "NVIDIA_TESLA_P100", "NVIDIA_TESLA_V100"

LEGACY_MACHINES = {
    "standard": LegacyMachine("n1-standard-4"),
    "large_model": LegacyMachine("n1-highmem-8"),
    "complex_model_s": LegacyMachine("n1-highcpu-8"),
    "complex_model_m": LegacyMachine("n1-highcpu-16"),
    "complex_model_l": LegacyMachine("n1-highcpu-32"),
    "standard_gpu": LegacyMachine("n1-standard-8", (_K80, 1)),
    "complex_model_m_gpu": LegacyMachine("n1-standard-16", (_K80, 4)),
    "complex_model_l_gpu": LegacyMachine("n1-standard-32", (_K80, 8)),
    "standard_p100": LegacyMachine("n1-standard-8", (_P100, 1)),
    "complex_model_m_p100": LegacyMachine("n1-standard-16", (_P100, 4)),
    "standard_v100": LegacyMachine("n1-standard-8", (_V100, 1), verified=False),
    "large_model_v100": LegacyMachine("n1-highmem-8", (_V100, 1), verified=False),
    "complex_model_m_v100": LegacyMachine("n1-standard-16", (_V100, 4), verified=False),
    "complex_model_l_v100": LegacyMachine("n1-standard-32", (_V100, 8), verified=False),
}

#: The machine type that stood for a TPU.
CLOUD_TPU = "cloud_tpu"


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

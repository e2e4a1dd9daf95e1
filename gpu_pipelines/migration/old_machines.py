"""Machines of old jobs: AI Platform Training's own types, its scale tiers, and its combinations of GPUs and machines.

Some of its own types included GPUs. Vertex AI has neither these types nor scale tiers.

Source: GPUs are those of Google's page on GPUs for AI Platform Training; machines are those of the old documentation's
table of machine types, from general knowledge for those with V100 and for the scale tiers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from gpu_pipelines.accelerators.catalog import Catalog, Gpu, MachineType
from gpu_pipelines.accelerators.request import PlanRequest
from gpu_pipelines.accelerators.rules import check, listed
from gpu_pipelines.errors import UserError, nearest


@dataclass(frozen=True)
class LegacyMachine:
    """The machine of a legacy machine type.

    Attributes:
        machine_type: machine type of Compute Engine.
        accelerator: type and number of the GPUs that it included.
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

#: The machine type for a TPU.
CLOUD_TPU = "cloud_tpu"
#: Families of machine types that the service offered with GPUs.
FAMILIES = ("n1", "a2-highgpu", "a2-megagpu")
#: A date before the end of every GPU: the table is asked whether a combination was valid, not whether it still is.
_BEFORE_ANY_END = date.min
#: vCPUs and GB of N1 machines that Compute Engine has but Vertex AI training does not.
_TOO_SMALL = {
    "n1-standard-1": (1, 3.75),
    "n1-standard-2": (2, 7.5),
    "n1-highcpu-2": (2, 1.8),
    "n1-highcpu-4": (4, 3.6),
    "n1-highcpu-8": (8, 7.2),
}


def cpu_machine(name: str, where: str, catalog: Catalog) -> tuple[str, str]:
    """The machine for one without GPUs, and a sentence on why it differs; empty if it is the same.

    Args:
        name: machine type of Compute Engine.
        where: its field, for messages.
        catalog: the catalog of machines.

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


@dataclass(frozen=True)
class Replicas:
    """Machines of one role.

    Attributes:
        machine_type: the machine type of Compute Engine.
        count: the number of machines.
        accelerator: type and number of the GPUs of each.
    """

    machine_type: str
    count: int = 1
    accelerator: tuple[str, int] | None = None


@dataclass(frozen=True)
class ScaleTier:
    """The machines of a scale tier.

    Attributes:
        master, worker, parameter_server: its machines; None for none.
    """

    master: Replicas
    worker: Replicas | None = None
    parameter_server: Replicas | None = None


#: The machines of the scale tiers. That BASIC_GPU has one K80 is on Google's page.
SCALE_TIERS = {
    "BASIC": ScaleTier(Replicas("n1-standard-4")),
    "BASIC_GPU": ScaleTier(Replicas("n1-standard-8", accelerator=("NVIDIA_TESLA_K80", 1))),
    "STANDARD_1": ScaleTier(Replicas("n1-highcpu-8"), Replicas("n1-highcpu-8", 4), Replicas("n1-standard-4", 3)),
    "PREMIUM_1": ScaleTier(Replicas("n1-highcpu-16"), Replicas("n1-highcpu-16", 19), Replicas("n1-highmem-8", 11)),
}


def wrong_combination(machine: MachineType, gpu: Gpu, count: int, catalog: Catalog) -> str:
    """Why the service refused this number of GPUs on a machine, with the nearest valid ones; empty if it was valid."""
    request = PlanRequest(f"{gpu.name}:{count}", machine_type=machine.name)
    findings = check(request, catalog, _BEFORE_ANY_END).findings
    if not findings:
        return ""
    text = " ".join(finding.message for finding in findings)
    limit = catalog.host_limits.get((gpu.name, count))
    over = limit is not None and (machine.vcpus > limit.max_vcpus or machine.memory_gb > limit.max_memory_gb)
    if limit is not None and over and gpu.name not in machine.gpu_counts:
        text += f" {count} × {gpu.name} carry at most {limit.max_vcpus} vCPUs and {limit.max_memory_gb:g} GB."
    near = _nearest(machine, gpu, count, catalog)
    return f"{text} Nearest: {listed(near)}." if near else text


def _nearest(machine: MachineType, gpu: Gpu, count: int, catalog: Catalog) -> list[str]:
    counts = sorted(machine.gpu_counts.get(gpu.name, ()), key=lambda each: (abs(each - count), -each))
    near = [f"{machine.name} with {each}" for each in counts[:1]]
    carriers = [other for other in catalog.machines_with(gpu.name, count) if other.family in FAMILIES]
    carriers.sort(key=lambda other: (abs(other.vcpus - machine.vcpus), abs(other.memory_gb - machine.memory_gb)))
    return [*near, *(f"{other.name} with {count}" for other in carriers[:1])]

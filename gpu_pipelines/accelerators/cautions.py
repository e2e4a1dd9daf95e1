"""Warnings about a valid plan, apart from errors."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from gpu_pipelines.accelerators.catalog import Catalog, Gpu, GpuPartition, MachineType
from gpu_pipelines.accelerators.catalog.records import ANY_PYTORCH
from gpu_pipelines.accelerators.placement import located, zones_of


@dataclass(frozen=True)
class Caution:
    """One warning.

    Attributes:
        code: short and stable, for programs: `contested`, `recommended`, `ends`, `bf16`, `cuda`, `arm64`, `partition`,
            `unverified`.
        message: the warning.
        of_vertex: whether it is only about training on Vertex AI, and not about the machine.
    """

    code: str
    message: str
    of_vertex: bool = False


def cautions(
    gpu: Gpu,
    machine: MachineType,
    strategy: str,
    region: str | None,
    catalog: Catalog,
    today: date,
    partition: GpuPartition | None = None,
) -> tuple[Caution, ...]:
    """All warnings about a valid plan."""
    return (
        *_of_buying(machine, strategy),
        *_of_the_end(gpu, today),
        *_of_software(gpu, machine),
        *_of_unverified_facts(gpu, machine, strategy),
        *_of_the_region(gpu, region, catalog),
        *_of_the_partition(gpu, partition),
    )


def _of_buying(machine: MachineType, strategy: str) -> list[Caution]:
    stands = machine.offered(strategy)
    if stands == "contested":
        told, _, of_vertex = machine.note.partition("; ")
        refused = Caution("contested", f"{machine.name} on {strategy} may be refused: {told}. Spot is safer.")
        also = Caution("contested", f"{machine.name}: {of_vertex}.", of_vertex=True)
        return [refused, also] if of_vertex else [refused]
    if stands == "unverified":
        message = f"No page says whether {machine.name} is available with {strategy} for training."
        return [Caution("unverified", message, of_vertex=True)]
    if strategy == "standard" and "recommends" in machine.note:
        return [Caution("recommended", f"{machine.name}: {machine.note}.")]
    return []


def _of_the_end(gpu: Gpu, today: date) -> list[Caution]:
    if gpu.ends is None or gpu.has_ended(today):
        return []
    days = (gpu.ends - today).days
    take = " or ".join(gpu.replacements)
    return [Caution("ends", f"Support of {gpu.name} ends on {gpu.ends}, in {days} days; jobs after that need {take}.")]


def _of_software(gpu: Gpu, machine: MachineType) -> list[Caution]:
    found = []
    if not gpu.supports_bf16:
        precision = "fp16 with loss scaling" if gpu.fp16_tflops else "fp32"
        found.append(Caution("bf16", f"{gpu.name} ({gpu.architecture}) has no bf16; train in {precision}."))
    if gpu.last_cuda:
        found.append(
            Caution("cuda", f"CUDA {gpu.last_cuda} is the last that runs on {gpu.name}. PyTorch: {gpu.pytorch}.")
        )
    elif gpu.pytorch != ANY_PYTORCH:
        found.append(Caution("cuda", f"{gpu.name} needs {gpu.pytorch}."))
    if machine.host_architecture != "amd64":
        found.append(Caution("arm64", f"{machine.name} has ARM64 hosts: the image must be built for linux/arm64."))
    return found


def _of_unverified_facts(gpu: Gpu, machine: MachineType, strategy: str) -> list[Caution]:
    found = []
    metric = quota_field(strategy)
    if metric in gpu.unverified:
        message = f"The name of the quota metric, {getattr(gpu, metric)}, is not verified."
        found.append(Caution("unverified", message, of_vertex=True))
    if "boot_disk" in machine.unverified:
        message = f"That {machine.name} starts from {machine.boot_disk} is not verified for training."
        found.append(Caution("unverified", message, of_vertex=True))
    return found


def _of_the_region(gpu: Gpu, region: str | None, catalog: Catalog) -> list[Caution]:
    if region is None or not located(catalog, gpu.name):
        return []
    found = []
    if catalog.regions[region].vertex_training == "sdk-only":
        message = f"{region} is a training region for the SDK, but not for gcloud; it may be refused."
        found.append(Caution("unverified", message, of_vertex=True))
    if not zones_of(catalog, gpu.name, region):
        found.append(Caution("unverified", f"Which zones of {region} have {gpu.name} is not known."))
    return found


def _of_the_partition(gpu: Gpu, partition: GpuPartition | None) -> list[Caution]:
    if partition is None:
        return []
    paid = (
        f"You pay for the whole {gpu.name}, and the job has a partition of it: {partition.memory_gb} of "
        f"{gpu.memory_gb} GB and {partition.share:.0%} of its multiprocessors."
    )
    unverified = "The API's reference says that training takes partitions; Google's pages have them for predictions."
    return [Caution("partition", paid), Caution("unverified", unverified, of_vertex=True)]


def quota_field(strategy: str) -> str:
    """The attribute of `Gpu` that names the quota a strategy draws on; Flex-start draws on that of Spot."""
    return "spot_metric" if strategy in ("spot", "flex-start") else "training_metric"

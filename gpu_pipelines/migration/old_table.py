"""The table of how many GPUs AI Platform Training put on which machine: what the old job must have kept."""

from __future__ import annotations

from datetime import date

from gpu_pipelines.accelerators.catalog import Catalog, Gpu, MachineType
from gpu_pipelines.accelerators.request import PlanRequest
from gpu_pipelines.accelerators.rules import check, listed

#: Families of machine types that it had with GPUs.
FAMILIES = ("n1", "a2-highgpu", "a2-megagpu")
#: A day before every GPU's end: the table is asked whether a combination was valid, not whether it still is.
_BEFORE_ANY_END = date.min


def wrong_combination(machine: MachineType, gpu: Gpu, count: int, catalog: Catalog) -> str:
    """Why the service refused that many of a GPU on a machine, with the nearest that it took; empty if it took them."""
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

"""The list of all GPUs, and everything known about one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from gpu_pipelines.accelerators.catalog import Catalog, ElsewhereGpu, Gpu, load_catalog
from gpu_pipelines.accelerators.cost import price_in
from gpu_pipelines.accelerators.placement import usable_regions, zones_of
from gpu_pipelines.accelerators.plan import plan
from gpu_pipelines.accelerators.request import STRATEGIES, find_gpu, shown
from gpu_pipelines.errors import UserError, nearest


def list_accelerators(region: str | None = None, *, today: date | None = None) -> list[dict[str, Any]]:
    """Every GPU by name, with its properties and its price, as `gpu-pipelines accelerators list`.

    Args:
        region: only the GPUs that this region has, at its prices; None for all, at those of the cheapest region.
        today: the day that ended GPUs are judged by; None takes today.

    Returns:
        For each GPU what `--json` prints about it: `name`, `memory_gb`, `counts` on one machine, `regions`, and prices
        in USD per hour of one GPU with its share of a machine, among others.

    Raises:
        UserError: there is no such region.
    """
    catalog = load_catalog()
    if region is not None and region not in catalog.regions:
        raise UserError(f"There is no region {shown(region)} with GPUs. {nearest(region, catalog.regions)}")
    day = today or date.today()
    gpus = [_summary(gpu, catalog, region, day) for gpu in catalog.gpus.values()]
    return [gpu for gpu in gpus if region is None or gpu["regions"]]


def _summary(gpu: Gpu, catalog: Catalog, region: str | None, today: date) -> dict[str, Any]:
    machines = catalog.machines_with(gpu.name)
    gone = gpu.has_ended(today)
    regions = [] if gone else usable_regions(catalog, gpu.name, machines)
    regions = [each for each in regions if region in (None, each)]
    cheapest = _cheapest_gpu_hour(gpu, catalog, regions)
    return {
        "name": gpu.name,
        "accelerator_type": gpu.enum,
        "product": gpu.product,
        "status": "gone" if gone else "ending" if gpu.ends else "available",
        "ends": gpu.ends.isoformat() if gpu.ends else None,
        "replacements": list(gpu.replacements),
        "memory_gb": gpu.memory_gb,
        "memory_bandwidth_gb_s": gpu.memory_bandwidth_gb_s,
        "bf16_tflops": gpu.bf16_tflops,
        "fp16_tflops": gpu.fp16_tflops,
        "counts": catalog.counts(gpu.name),
        "regions": regions,
        "cheapest_on_demand_per_gpu_hour": cheapest["on_demand"],
        "cheapest_spot_per_gpu_hour": cheapest["spot"],
    }


def _cheapest_gpu_hour(gpu: Gpu, catalog: Catalog, regions: Sequence[str]) -> dict[str, float | None]:
    """The lowest price of one GPU with its share of a machine, USD per hour."""
    found: dict[str, list[float]] = {"on_demand": [], "spot": []}
    for machine in catalog.machines_with(gpu.name):
        for count in machine.gpu_counts[gpu.name]:
            for region in regions:
                price = price_in(catalog, gpu, count, machine, region)
                for kind, values in found.items():
                    value = getattr(price, kind) if price else None
                    # What Compute Engine does not sell on demand has no price on demand, though its parts add up.
                    sold = kind == "spot" or machine.standard == "yes"
                    if value is not None and sold:
                        values.append(value / count)
    return {kind: round(min(values), 4) if values else None for kind, values in found.items()}


def describe_accelerator(name: str) -> dict[str, Any]:
    """Everything known about one GPU, as `gpu-pipelines accelerators show`.

    Args:
        name: of the GPU, such as h100.

    Returns:
        What `--json` prints: hardware, software, `machines`, `zones` by region, quotas, `sources`, and the names of the
        facts that are `unverified`.

    Raises:
        UserError: there is no such GPU; it says what to take instead.
    """
    catalog = load_catalog()
    gpu = find_gpu(catalog, name[:64])
    if isinstance(gpu, ElsewhereGpu):
        plan(f"{gpu.name}:1", catalog=catalog)
    if not isinstance(gpu, Gpu):
        raise UserError(f"There is no GPU {shown(name)}. {nearest(name, catalog.gpus)}")
    return {
        **_summary(gpu, catalog, None, date.today()),
        "compute_engine_name": gpu.compute_engine_name,
        "gke_label": gpu.gke_label,
        "architecture": gpu.architecture,
        "compute_capability": gpu.compute_capability,
        "fp32_tflops": gpu.fp32_tflops,
        "nvlink": gpu.nvlink,
        "note": gpu.note,
        "min_cuda": gpu.min_cuda,
        "last_cuda": gpu.last_cuda,
        "pytorch": gpu.pytorch,
        "training_quota": gpu.training_metric,
        "spot_quota": gpu.spot_metric,
        "machines": [_machine(machine.name, gpu, catalog) for machine in catalog.machines_with(gpu.name)],
        "zones": {
            region: list(zones_of(catalog, gpu.name, region))
            for region in usable_regions(catalog, gpu.name, catalog.machines_with(gpu.name))
        },
        "unverified": list(dict.fromkeys(gpu.unverified)),
        "sources": [_source(source, catalog) for source in gpu.sources],
    }


def _machine(name: str, gpu: Gpu, catalog: Catalog) -> dict[str, Any]:
    machine = catalog.machine_types[name]
    return {
        "machine_type": name,
        "counts": list(machine.gpu_counts[gpu.name]),
        "vcpus": machine.vcpus,
        "memory_gb": machine.memory_gb,
        "strategies": {strategy: machine.offered(strategy) for strategy in STRATEGIES},
        "boot_disk": machine.boot_disk,
    }


def _source(source: str, catalog: Catalog) -> dict[str, Any]:
    found = catalog.sources[source]
    return {"what": found.what, "where": found.where, "as_of": found.as_of.isoformat() if found.as_of else None}

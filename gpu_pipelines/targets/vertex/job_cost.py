"""What all pools of a job cost together, those without GPUs with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from gpu_pipelines.accelerators.catalog import Catalog, load_catalog
from gpu_pipelines.accelerators.cost import RegionPrice, price_in
from gpu_pipelines.accelerators.together import share_zone
from gpu_pipelines.targets.vertex.job_request import PreparedJob


@dataclass(frozen=True)
class _Sum:
    """All pools in one region: US dollars per hour, and the day of the oldest price list."""

    region: str
    per_hour: float
    as_of: date | None


def cost_of_all_pools(prepared: PreparedJob) -> str:
    """One line on what the machines of all pools cost together; empty for a job of one kind of machine."""
    pools = [pool for pool in prepared.spec["worker_pool_specs"] if pool]
    if not prepared.plans or len({str(pool.get("machine_spec")) for pool in pools}) < 2:
        return ""
    catalog, first = load_catalog(), prepared.plans[0]
    regions = (prepared.region,) if prepared.region else share_zone(prepared.plans, catalog).regions
    sums = [found for region in regions if (found := _sum(pools, str(region), first.strategy, catalog))]
    if not sums:
        return "all pools together: no price is known in one region"
    cheapest = min(sums, key=lambda found: (found.per_hour, found.region))
    told = f"all pools together: about {cheapest.per_hour:,.2f} USD per hour in {cheapest.region}"
    if prepared.region is None:
        told += ", the cheapest region that has all"
    if first.hours is not None:
        told += f", {cheapest.per_hour * first.hours:,.2f} USD for {first.hours:g} h"
    return f"{told} (list prices of {cheapest.as_of or 'unknown date'}; without fees, disks and traffic)"


def _sum(pools: list[dict[str, Any]], region: str, strategy: str, catalog: Catalog) -> _Sum | None:
    """None where the price of one is not known."""
    prices = [_price(pool, region, catalog) for pool in pools]
    total = 0.0
    for price in prices:
        per_hour = None if price is None else price.spot if strategy == "spot" else price.on_demand
        if per_hour is None:
            return None
        total += per_hour
    return _Sum(region, total, catalog.as_of({source for price in prices if price for source in price.sources}))


def _price(pool: Mapping[str, Any], region: str, catalog: Catalog) -> RegionPrice | None:
    spec = pool.get("machine_spec", {})
    machine = catalog.machine_types.get(spec.get("machine_type", ""))
    gpu = next((gpu for gpu in catalog.gpus.values() if gpu.enum == spec.get("accelerator_type")), None)
    if machine is None:
        return None
    return price_in(catalog, gpu, spec.get("accelerator_count", 0), machine, region, pool.get("replica_count", 1))

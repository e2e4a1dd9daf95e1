"""What a plan costs: per hour and for a duration, by region, on demand and on Spot, from the catalog's price list."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from gpu_pipelines.accelerators.catalog import Catalog, Gpu, MachineType, Price, load_catalog
from gpu_pipelines.accelerators.placement import usable_regions
from gpu_pipelines.accelerators.plan import AcceleratorPlan

#: What the list prices do not include.
LEFT_OUT = (
    "the management fee of Vertex AI training",
    "the boot disk",
    "network traffic and storage",
    "discounts for sustained or committed use",
    "the price of Flex-start (Dynamic Workload Scheduler), which no list that was found has",
)


@dataclass(frozen=True)
class RegionPrice:
    """What all nodes of a plan cost in one region, US dollars per hour.

    Attributes:
        region: name of the region.
        on_demand: USD per hour; None if no trustworthy figure was found.
        spot: USD per hour; None likewise.
        unverified: whether a figure of these is not verified.
        sources: ids of the sources.
    """

    region: str
    on_demand: float | None
    spot: float | None
    unverified: bool
    sources: tuple[str, ...]


@dataclass(frozen=True)
class CostEstimate:
    """What a plan costs.

    Attributes:
        strategy: how the plan is bought, which decides the price that counts.
        hours: the duration that totals are for; None gives prices per hour only.
        here: the price in the plan's region; None if that is open or has no price.
        regions: prices of every region where the plan can run and a price is known, the cheapest first by the price
            that counts.
        as_of: the oldest day of the price lists in use; None if none has a date.
        undated: ids of the sources in use that have no date.
        left_out: what the figures do not include.
    """

    strategy: str
    hours: float | None
    here: RegionPrice | None
    regions: tuple[RegionPrice, ...]
    as_of: date | None
    undated: tuple[str, ...]
    left_out: tuple[str, ...]

    def per_hour(self, price: RegionPrice) -> float | None:
        """The price that counts for the plan's strategy, USD per hour; for Flex-start that on demand, as a bound."""
        return price.spot if self.strategy == "spot" else price.on_demand

    def total(self, price: RegionPrice) -> float | None:
        """The same for the duration, USD; None without a duration or a price."""
        per_hour = self.per_hour(price)
        return None if per_hour is None or self.hours is None else per_hour * self.hours

    def to_json(self) -> dict[str, Any]:
        """The estimate as a JSON object."""
        return {
            "currency": "USD",
            "strategy": self.strategy,
            "hours": self.hours,
            "here": self._line(self.here) if self.here else None,
            "regions": [self._line(price) for price in self.regions],
            "as_of": self.as_of.isoformat() if self.as_of else None,
            "undated_sources": list(self.undated),
            "left_out": list(self.left_out),
        }

    def _line(self, price: RegionPrice) -> dict[str, Any]:
        total = self.total(price)
        return {
            "region": price.region,
            "on_demand_per_hour": _rounded(price.on_demand),
            "spot_per_hour": _rounded(price.spot),
            "total": _rounded(total),
            "unverified": price.unverified,
        }


def estimate_cost(
    plan: AcceleratorPlan, hours: float | None = None, *, catalog: Catalog | None = None
) -> CostEstimate | None:
    """What a plan costs.

    Args:
        plan: the plan.
        hours: how long the job runs; None takes the plan's own limit, if it has one.
        catalog: the facts; None takes those of the package.

    Returns:
        The estimate; None for `cpu:N`, which costs nothing here.
    """
    if plan.gpu is None or plan.machine is None:
        return None
    facts = catalog or load_catalog()
    prices = []
    for region in usable_regions(facts, plan.gpu.name, [plan.machine]):
        price = price_in(facts, plan.gpu, plan.count, plan.machine, region, plan.nodes)
        if price is not None:
            prices.append(price)
    sources = {source for price in prices for source in price.sources}
    estimate = CostEstimate(
        strategy=plan.strategy,
        hours=hours if hours is not None else plan.hours,
        here=next((price for price in prices if price.region == plan.region), None),
        regions=(),
        as_of=facts.as_of(sources),
        undated=facts.undated(sources),
        left_out=LEFT_OUT,
    )
    return _with_regions(estimate, prices)


def dollars_per_hour(plan: AcceleratorPlan) -> float | None:
    """The list price of all nodes of a plan, USD per hour; None for `cpu:N`, and if none is known.

    If the region is open, it is the price of the dearest region, so that a budget holds in each.
    """
    cost = estimate_cost(plan)
    prices = [cost.here] if cost and plan.region else cost.regions if cost else ()
    known = [cost.per_hour(price) for price in prices if cost and price]
    found = [price for price in known if price is not None]
    return round(max(found), 4) if found else None


def price_in(
    catalog: Catalog, gpu: Gpu | None, count: int, machine: MachineType, region: str, nodes: int = 1
) -> RegionPrice | None:
    """The price of machines with their GPUs in a region; None if none is known.

    The price of a machine with attached GPUs is the sum of its vCPUs, its memory and those GPUs, if any; every other
    machine has one price.
    """
    if machine.attached:
        parts = [
            (catalog.prices.get((machine.family, "vcpu", region)), float(machine.vcpus)),
            (catalog.prices.get((machine.family, "memory_gb", region)), machine.memory_gb),
        ]
        parts += [(catalog.prices.get((gpu.name, "gpu", region)), float(count))] if gpu else []
    else:
        parts = [(catalog.prices.get((machine.name, "machine", region)), 1.0)]
    known = [(price, amount) for price, amount in parts if price is not None]
    if len(known) < len(parts):
        return None
    return RegionPrice(
        region=region,
        on_demand=_sum([(price.on_demand, amount) for price, amount in known], nodes),
        spot=_sum([(price.spot, amount) for price, amount in known], nodes),
        unverified=any(price.unverified for price, _ in known),
        sources=_sources([price for price, _ in known]),
    )


def _with_regions(estimate: CostEstimate, prices: list[RegionPrice]) -> CostEstimate:
    def key(price: RegionPrice) -> tuple[float, str]:
        per_hour = estimate.per_hour(price)
        return (float("inf") if per_hour is None else per_hour, price.region)

    return replace(estimate, regions=tuple(sorted(prices, key=key)))


def _sum(parts: list[tuple[float | None, float]], nodes: int) -> float | None:
    total = 0.0
    for value, amount in parts:
        if value is None:
            return None
        total += value * amount
    return total * nodes


def _sources(prices: list[Price]) -> tuple[str, ...]:
    return tuple(sorted({source for price in prices for source in price.sources}))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)

"""Prices from the Cloud Billing API: SKUs of vCPUs, memory, GPUs and SSD, put together to machines."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from gpu_pipelines.accelerators.catalog import Catalog, MachineType, Price
from gpu_pipelines.accelerators.live.clients import Clients, api_errors

#: Compute Engine in the Cloud Billing catalog.
COMPUTE_ENGINE = "services/6F81-5844-456A"
SOURCE = "cloud-billing-api"
HOURS_PER_MONTH = 730
KINDS = {"OnDemand": "on_demand", "Preemptible": "spot"}

#: A description is `[Spot Preemptible ]NAME[ attached to Spot Preemptible VMs][[ running] in PLACE]`.
_DECORATION = re.compile(
    r"(?:Spot )?(?:Preemptible )?(?P<name>.*?)(?: attached to Spot Preemptible VMs)?(?:(?: running)? in .*)?"
)

#: Rates by resource (`vcpu`, `memory_gb`, `local_ssd_gb`) or GPU, machine family, kind and region, USD per hour.
Rates = dict[tuple[str, str, str, str], float]


def read_rates(catalog: Catalog, clients: Clients) -> Rates:
    """Reads the rates of everything that `sku_names.csv` names.

    Raises:
        UserError: if the API cannot be read.
    """
    rates: Rates = {}
    with api_errors("The price list", "the API cloudbilling"):
        for sku in clients.prices().list_skus(request={"parent": COMPUTE_ENGINE, "page_size": 5000}):
            kind = KINDS.get(sku.category.usage_type)
            match = _DECORATION.fullmatch(sku.description)
            named = catalog.sku_names.get(match["name"]) if match else None
            if kind is None or named is None or not sku.pricing_info:
                continue
            rate = _rate_per_hour(sku.pricing_info[-1].pricing_expression)
            if not rate:
                continue
            for family in named.machine_families:
                for region in sku.service_regions:
                    rates[named.gpu or named.resource, family, kind, region] = rate
    return rates


def _rate_per_hour(expression: Any) -> float | None:
    """US dollars per hour of one unit; None for a unit that is not understood."""
    if not expression.tiered_rates:
        return None
    price = expression.tiered_rates[-1].unit_price
    amount = price.units + price.nanos / 1e9
    divisor = {"h": 1, "GiBy.h": 1, "GiBy.mo": HOURS_PER_MONTH}.get(expression.usage_unit)
    return amount / divisor if divisor else None


def prices_of(rates: Rates, catalog: Catalog) -> list[Price]:
    """The rates as rows of prices.csv: machines with attached GPUs by their parts, every other machine as a whole.

    A machine has a price in a region only if every part it is billed by has one there.
    """
    found: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    by_parts = {machine.family for machine in catalog.machine_types.values() if machine.attached}
    for (what, family, kind, region), rate in rates.items():
        if family in by_parts:
            item, unit = (family, what) if what in ("vcpu", "memory_gb") else (what, "gpu")
            found[item, unit, region][kind] = rate
    billed = _billed_parts(catalog)
    for machine in catalog.machine_types.values():
        if machine.attached:
            continue
        for kind in KINDS.values():
            regions = {region for _, family, of, region in rates if family == machine.family and of == kind}
            for region in regions:
                total = _machine_total(machine, billed[machine.family], rates, kind, region)
                if total is not None:
                    found[machine.name, "machine", region][kind] = total
    return [
        Price(item, unit, region, kinds.get("on_demand"), kinds.get("spot"), unverified=(), sources=(SOURCE,))
        for (item, unit, region), kinds in found.items()
    ]


def _billed_parts(catalog: Catalog) -> dict[str, set[str]]:
    parts: dict[str, set[str]] = defaultdict(set)
    for sku in catalog.sku_names.values():
        for family in sku.machine_families:
            parts[family].add(sku.gpu or sku.resource)
    return parts


def _machine_total(machine: MachineType, parts: Iterable[str], rates: Rates, kind: str, region: str) -> float | None:
    ((gpu, counts),) = machine.gpu_counts.items()
    amounts = {
        "vcpu": machine.vcpus,
        "memory_gb": machine.memory_gb,
        "local_ssd_gb": machine.local_ssd_gb,
        gpu: counts[0],
    }
    total = 0.0
    for part in parts:
        amount = amounts.get(part, 0)
        if not amount:
            continue
        rate = rates.get((part, machine.family, kind, region))
        if rate is None:
            return None
        total += amount * rate
    return total or None

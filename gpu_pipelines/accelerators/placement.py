"""Where a plan can run: the regions that have a GPU on a machine, their zones, and which region is near which."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from gpu_pipelines.accelerators.catalog import Catalog, MachineType, Region


def usable_regions(catalog: Catalog, gpu: str, machines: Iterable[MachineType]) -> list[str]:
    """Regions where Vertex AI training runs and one of those machines has that GPU, by name."""
    families = {machine.family for machine in machines}
    return sorted(
        row.region
        for row in catalog.availability.values()
        if row.gpu == gpu
        and families.intersection(row.machine_families)
        and catalog.regions[row.region].vertex_training != "no"
    )


def located(catalog: Catalog, gpu: str) -> bool:
    """Whether the catalog knows any region of that GPU; it knows none of the K80, which was gone before its sources."""
    return any(row.gpu == gpu for row in catalog.availability.values())


def zones_of(catalog: Catalog, gpu: str, region: str) -> tuple[str, ...]:
    """Zones of the region that have the GPU; empty if they are not known."""
    row = catalog.availability.get((gpu, region))
    return row.zones if row else ()


def by_distance(catalog: Catalog, origin: str, regions: Iterable[str]) -> list[str]:
    """Those regions, the nearest to `origin` first."""
    start = catalog.regions[origin]
    return sorted(regions, key=lambda name: (_distance(start, catalog.regions[name]), name))


def _distance(a: Region, b: Region) -> float:
    """Great-circle angle between two places, radians (haversine formula)."""
    lat_a, lat_b = math.radians(a.latitude), math.radians(b.latitude)
    half = math.radians(b.longitude - a.longitude) / 2
    chord = math.sin((lat_b - lat_a) / 2) ** 2 + math.cos(lat_a) * math.cos(lat_b) * math.sin(half) ** 2
    return 2 * math.asin(math.sqrt(min(1.0, chord)))


def by_variety(catalog: Catalog, regions: Iterable[str]) -> list[str]:
    """Those regions, the one with the most kinds of GPU first."""
    kinds = Counter(row.region for row in catalog.availability.values() if row.machine_families)
    return sorted(regions, key=lambda name: (-kinds[name], name))

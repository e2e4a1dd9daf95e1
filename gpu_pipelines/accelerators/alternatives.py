"""The nearest requests that would be accepted, for each thing that is wrong with one.

An alternative is a whole request, not a value: what is offered has been checked, so that trying it cannot fail.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from gpu_pipelines.accelerators.catalog import Catalog, Gpu
from gpu_pipelines.accelerators.placement import by_distance, by_variety, usable_regions
from gpu_pipelines.accelerators.request import (
    CPU,
    MAX_CPU_PROCESSES,
    MAX_NODES,
    STRATEGIES,
    PlanRequest,
    canonical,
    known_names,
    split_spec,
)
from gpu_pipelines.accelerators.rules import FLEX_START_MAX_HOURS, MAX_HOURS, Checked, check
from gpu_pipelines.accelerators.substitutes import substitutes

#: Alternatives offered for one problem.
MOST = 4

#: Fields of a request that a repair may change.
_REPAIRED = ("spec", "machine_type", "region", "strategy", "reservation", "hours", "memory_gb", "nodes")
#: Fields that can conflict: a machine with a region, a strategy with a GPU.
_OPPOSED = ("machine_type", "memory_gb", "strategy", "region", "reservation", "hours")
#: The field of the request that holds a field of a finding, where the names differ.
_FIELD_OF = {"gpu": "spec", "count": "spec"}


def alternatives(checked: Checked, field: str, catalog: Catalog, today: date) -> tuple[PlanRequest, ...]:
    """Accepted requests that differ from the checked one in `field`, and elsewhere only where they must.

    Args:
        checked: a request with findings.
        field: field of the finding.
        catalog: the facts.
        today: the day that ended GPUs are judged by.
    """
    found: dict[PlanRequest, None] = {}
    for changes in _changes(checked, field, catalog):
        candidate = replace(checked.request, **changes)
        accepted = _repair(candidate, frozenset(changes), catalog, today)
        if accepted is not None:
            found[accepted] = None
        if len(found) == MOST:
            break
    return tuple(found)


def _changes(checked: Checked, field: str, catalog: Catalog) -> Iterator[dict[str, Any]]:
    """Values to try for the field, the nearest first."""
    request = checked.request
    if field in ("gpu", "count"):
        yield from _specs(checked, field, catalog)
    elif field == "machine_type":
        yield from _machine_types(checked, catalog)
    elif field == "region":
        yield from ({"region": region} for region in _regions(checked, catalog))
        yield {"region": None}
    elif field == "strategy":
        yield from _strategies(request)
    elif field == "reservation":
        yield {"reservation": None}
        yield {"reservation": None, "strategy": "standard"}
    elif field == "hours":
        most = FLEX_START_MAX_HOURS if request.chosen_strategy == "flex-start" else MAX_HOURS
        yield {"hours": float(most)}
        if request.hours is not None and 0 < request.hours <= MAX_HOURS:
            yield from ({"strategy": other} for other in ("standard", "spot"))
        yield {"hours": None}
    elif field == "nodes":
        yield {"nodes": min(max(request.nodes, 1), 1 if checked.is_cpu else MAX_NODES)}
    elif field == "memory_gb":
        yield from ({"memory_gb": value} for value in _memories(checked, catalog))
        yield {"memory_gb": None}


def _strategies(request: PlanRequest) -> Iterator[dict[str, Any]]:
    if request.strategy and request.strategy not in STRATEGIES:
        close = difflib.get_close_matches(canonical(request.strategy[:64]), STRATEGIES, n=1)
        yield from ({"strategy": name} for name in close)
    if request.reservation is not None:
        yield {"strategy": "reservation"}
        yield {"reservation": None}
    yield {"strategy": None}
    yield from ({"strategy": name, "reservation": None} for name in ("spot", "flex-start", "reservation"))


def _regions(checked: Checked, catalog: Catalog) -> list[str]:
    asked = checked.request.region
    if checked.zone is not None:
        return [checked.zone.rpartition("-")[0]]
    if checked.is_cpu or asked is None:
        return []
    names: list[str] = list(catalog.regions)
    if checked.gpu is not None:
        names = usable_regions(catalog, checked.gpu.name, catalog.machines_with(checked.gpu.name))
    if asked in catalog.regions:
        return by_distance(catalog, asked, names)
    close = difflib.get_close_matches(canonical(asked[:64]), names, n=3, cutoff=0.6)
    return [*close, *(name for name in by_variety(catalog, names) if name not in close)]


def _memories(checked: Checked, catalog: Catalog) -> list[float]:
    if checked.gpu is None:
        return []
    machines = catalog.machines_with(checked.gpu.name, checked.count)
    return sorted({machine.memory_gb for machine in machines}, reverse=True)


def _machine_types(checked: Checked, catalog: Catalog) -> Iterator[dict[str, Any]]:
    name, gpu = checked.request.machine_type, checked.gpu
    if name is None or gpu is None or checked.count is None:
        yield {"machine_type": None}
        return
    asked = catalog.machine_types.get(name)
    carriers = catalog.machines_with(gpu.name, checked.count)
    if asked is None:
        instead = catalog.unusable_machine_types.get(name)
        close = difflib.get_close_matches(canonical(name[:64]), [machine.name for machine in carriers], n=2)
        names = [*([instead.instead] if instead else []), *close]
        yield from ({"machine_type": each} for each in dict.fromkeys(names))
    else:
        near = sorted(carriers, key=lambda m: _ratio(m.vcpus, asked.vcpus) + _ratio(m.memory_gb, asked.memory_gb))
        yield from ({"machine_type": machine.name} for machine in near[:2])
        counts = asked.gpu_counts.get(gpu.name, ())
        for count in sorted(counts, key=lambda each: abs(each - checked.count))[:2]:  # type: ignore[operator]
            yield {"spec": f"{gpu.name}:{count}"}
        for other, numbers in asked.gpu_counts.items():
            if other != gpu.name:
                yield {"spec": f"{other}:{_nearest_counts(numbers, checked.count)[0]}"}
    yield {"machine_type": None}


def _ratio(a: float, b: float) -> float:
    return abs(math.log(a / b))


def _specs(checked: Checked, field: str, catalog: Catalog) -> Iterator[dict[str, Any]]:
    count = checked.count
    if checked.is_cpu:
        yield {"spec": f"{CPU}:{min(max(count or 1, 1), MAX_CPU_PROCESSES)}"}
        return
    for gpu in _gpus(checked, field, catalog):
        counts = catalog.counts(gpu.name)
        # More than one machine has: the same GPUs on several.
        nodes = math.ceil((count or 0) * checked.request.nodes / counts[-1])
        if count is not None and count > counts[-1] and 1 < nodes <= MAX_NODES:
            yield {"spec": f"{gpu.name}:{counts[-1]}", "nodes": nodes}
        for each in _nearest_counts(counts, count) if field == "count" else _nearest_counts(counts, count)[:1]:
            yield {"spec": f"{gpu.name}:{each}"}


def _gpus(checked: Checked, field: str, catalog: Catalog) -> Iterable[Gpu]:
    if checked.gpu is not None:
        names: Sequence[str] = (checked.gpu.name,) if field == "count" else checked.gpu.replacements
        # The replacement of a GPU that is gone also settles a wrong number of it.
        return [catalog.gpus[name] for name in dict.fromkeys((*names, *checked.gpu.replacements))]
    if checked.elsewhere is not None:
        return substitutes(checked.elsewhere, catalog)
    parts = split_spec(checked.request.spec)
    name = canonical(parts[0] if parts else checked.request.spec.partition(":")[0])[:64]
    known = {each: gpu for each in known_names(catalog) for gpu in catalog.gpus.values() if each == gpu.name}
    return [known[each] for each in difflib.get_close_matches(name, known, n=2)]


def _nearest_counts(counts: Sequence[int], count: int | None) -> list[int]:
    """Those numbers, the nearest to `count` first; of two equally near ones the greater."""
    if count is None:
        return list(counts)
    return sorted(counts, key=lambda each: (abs(each - count), -each))


def _repair(candidate: PlanRequest, kept: frozenset[str], catalog: Catalog, today: date) -> PlanRequest | None:
    """The candidate, or the accepted request that differs from it in the fewest fields outside `kept`."""
    for changes in range(len(_REPAIRED)):
        found = _repair_within(candidate, kept, changes, catalog, today)
        if found is not None:
            return found
    return None


def _repair_within(
    candidate: PlanRequest, kept: frozenset[str], changes: int, catalog: Catalog, today: date
) -> PlanRequest | None:
    checked = check(candidate, catalog, today)
    if not checked.findings:
        return candidate
    if changes == 0:
        return None
    # Every finding must be repaired in the end, so it is enough to begin with the first. If its own field must not
    # change, a field that conflicts with it may.
    broken = [_FIELD_OF.get(finding.field, finding.field) for finding in checked.findings]
    open_fields = [name for name in broken if name not in kept]
    for name in open_fields[:1] or [name for name in _OPPOSED if name not in kept]:
        for value in _values(name, candidate, checked, catalog):
            changed = replace(candidate, **{name: value})
            found = _repair_within(changed, kept | {name}, changes - 1, catalog, today)
            if found is not None:
                return found
    return None


def _values(name: str, candidate: PlanRequest, checked: Checked, catalog: Catalog) -> list[Any]:
    """Values that a repair may try for a field, the nearest first."""
    now = getattr(candidate, name)
    values: list[Any] = []
    if name == "spec":
        # If the GPU is gone, another number of it does not help.
        field = "gpu" if any(finding.field == "gpu" for finding in checked.findings) else "count"
        values = [change["spec"] for change in itertools.islice(_specs(checked, field, catalog), 2)]
    elif name == "region" and now is not None:
        values = [*_regions(checked, catalog)[:3], None]
    elif name == "strategy":
        close = [change["strategy"] for change in _strategies(candidate) if "strategy" in change]
        values = list(dict.fromkeys([*close[:1], None, "spot", "reservation"]))
    elif name == "nodes":
        values = [min(max(now, 1), 1 if checked.is_cpu else MAX_NODES)]
    elif name == "hours" and now is not None:
        values = [float(FLEX_START_MAX_HOURS), None]
    elif now is not None:
        values = [None]
    return [value for value in values if value != now]

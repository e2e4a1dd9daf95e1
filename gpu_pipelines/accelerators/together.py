"""Several GPU types in one job: all of them must be in one zone of one region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_pipelines.accelerators.catalog import Catalog, load_catalog
from gpu_pipelines.accelerators.cautions import Caution
from gpu_pipelines.accelerators.placement import by_distance, by_variety, zones_of
from gpu_pipelines.accelerators.plan import AcceleratorPlan, PlanError, Problem
from gpu_pipelines.accelerators.rules import listed


@dataclass(frozen=True)
class SharedPlacement:
    """Where the pools of one job can run together.

    Attributes:
        region: their region; None if the plans leave it open.
        zones: zones of the region that have every GPU; empty if they are not known or the region is open.
        regions: regions where they can run together, as far as the zones are known.
        warnings: what could not be checked.
    """

    region: str | None
    zones: tuple[str, ...]
    regions: tuple[str, ...]
    warnings: tuple[Caution, ...]


def share_zone(plans: Sequence[AcceleratorPlan], catalog: Catalog | None = None) -> SharedPlacement:
    """Checks that the plans can be the worker pools of one job.

    Args:
        plans: a plan for each pool; pools without GPUs do not matter here and are left out.
        catalog: the facts; None takes those of the package.

    Raises:
        PlanError: if they cannot; each problem names the regions where they could.
    """
    facts = catalog or load_catalog()
    regions = _common_regions(plans, facts)
    problems = [*_local_problems(plans), *_region_problems(plans, regions), *_flex_start_problems(plans)]
    asked = {plan.region for plan in plans if plan.region}
    region = asked.pop() if len(asked) == 1 else None
    zones: tuple[str, ...] = ()
    unknown: list[str] = []
    if region and not problems:
        zones, unknown = _common_zones(plans, region, facts)
        if not zones and not unknown:
            problems.append(_no_common_zone(plans, region, regions, facts))
    elif region is None and not problems and not regions and any(plan.gpu for plan in plans):
        unknown = _never_located(plans, facts)
        if not unknown:
            problems.append(Problem("region", f"No region has {_names(plans)} in one zone."))
    if problems:
        raise PlanError(problems)
    return SharedPlacement(region, zones, tuple(regions), _unchecked(plans, region, unknown))


def _unchecked(plans: Sequence[AcceleratorPlan], region: str | None, unknown: Sequence[str]) -> tuple[Caution, ...]:
    if not unknown:
        return ()
    where = f"Which zones of {region or 'any region'} have {' and '.join(unknown)} is not known"
    return (Caution("unverified", f"{where}, so whether {_names(plans)} share one is not checked."),)


def _names(plans: Sequence[AcceleratorPlan]) -> str:
    return " and ".join(sorted({plan.gpu.name for plan in plans if plan.gpu}))


def _common_zones(plans: Sequence[AcceleratorPlan], region: str, catalog: Catalog) -> tuple[tuple[str, ...], list[str]]:
    """Zones that have every GPU, and the GPUs whose zones are not known; a reservation leaves its own zone only."""
    common: set[str] | None = None
    unknown = []
    for plan in plans:
        if plan.gpu is None:
            continue
        zones = plan.zones if plan.region == region and plan.zones else zones_of(catalog, plan.gpu.name, region)
        if not zones:
            unknown.append(plan.gpu.name)
            continue
        common = set(zones) if common is None else common & set(zones)
    if common == set():
        return (), []
    return (() if unknown else tuple(sorted(common or ()))), sorted(set(unknown))


def _common_regions(plans: Sequence[AcceleratorPlan], catalog: Catalog) -> list[str]:
    candidates = [set(plan.regions) for plan in plans if plan.gpu]
    shared = set.intersection(*candidates) if candidates else set()
    types = {plan.gpu.name for plan in plans if plan.gpu}
    if len(types) > 1:
        open_plans = [plan for plan in plans if plan.gpu]
        shared = {
            region
            for region in shared
            if set.intersection(*(set(zones_of(catalog, plan.gpu.name, region)) for plan in open_plans if plan.gpu))
        }
    return by_variety(catalog, shared)


def _never_located(plans: Sequence[AcceleratorPlan], catalog: Catalog) -> list[str]:
    """GPUs whose zones are known in none of the plan's regions."""
    return sorted(
        {
            plan.gpu.name
            for plan in plans
            if plan.gpu and not any(zones_of(catalog, plan.gpu.name, region) for region in plan.regions)
        }
    )


def _local_problems(plans: Sequence[AcceleratorPlan]) -> list[Problem]:
    if any(plan.is_local for plan in plans) and not all(plan.is_local for plan in plans):
        return [Problem("gpu", "cpu:N runs on this machine only and cannot be a pool of a job with GPUs.")]
    return []


def _region_problems(plans: Sequence[AcceleratorPlan], regions: Sequence[str]) -> list[Problem]:
    asked = sorted({plan.region for plan in plans if plan.region})
    if len(asked) < 2:
        return []
    where = f" All of them can run in {listed(regions[:4])}." if regions else ""
    return [Problem("region", f"The pools of one job run in one region, not in {' and '.join(asked)}.{where}")]


def _flex_start_problems(plans: Sequence[AcceleratorPlan]) -> list[Problem]:
    shapes = {(plan.machine_type, plan.spec) for plan in plans}
    if len(shapes) > 1 and any(plan.strategy == "flex-start" for plan in plans):
        machines = " and ".join(sorted(f"{machine} with {spec}" for machine, spec in shapes))
        return [Problem("strategy", f"Flex-start needs the same machine in every pool, not {machines}.")]
    return []


def _no_common_zone(plans: Sequence[AcceleratorPlan], region: str, regions: Sequence[str], catalog: Catalog) -> Problem:
    each = "; ".join(
        sorted({f"{p.gpu.name}: {', '.join(zones_of(catalog, p.gpu.name, region)) or '?'}" for p in plans if p.gpu})
    )
    near = by_distance(catalog, region, regions)[:4]
    where = "; ".join(f"{name} ({', '.join(_common_zones(_anywhere(plans), name, catalog)[0])})" for name in near)
    return Problem(
        "region",
        f"No zone of {region} has {_names(plans)} ({each}). "
        + (f"They share a zone in {where}." if where else "They share a zone in no region."),
    )


def _anywhere(plans: Sequence[AcceleratorPlan]) -> list[AcceleratorPlan]:
    return [replace(plan, region=None, zones=()) for plan in plans]

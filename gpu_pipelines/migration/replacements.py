"""Replaces a GPU that Google Cloud has shut down.

The number of GPUs stays, because batch sizes and device names of the training depend on it. Each new GPU has at least
the memory of the old one; of the machines in the region, the one with the lowest price is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from gpu_pipelines.accelerators import AcceleratorPlan, plan_request
from gpu_pipelines.accelerators.catalog import Catalog, Gpu, MachineType
from gpu_pipelines.accelerators.cost import CostEstimate, estimate_cost
from gpu_pipelines.accelerators.request import PlanRequest
from gpu_pipelines.accelerators.rules import check


@dataclass(frozen=True)
class Wanted:
    """The machines of a pool in the old job.

    Attributes:
        gpu: the GPU that is gone.
        count: GPUs of each machine.
        machine: the machine type.
        request: the plan request for the old GPU.
    """

    gpu: Gpu
    count: int
    machine: MachineType
    request: PlanRequest


@dataclass(frozen=True)
class _Candidate:
    plan: AcceleratorPlan
    gpu: Gpu
    machine: MachineType
    region: str
    usd_per_hour: float
    cost: CostEstimate


def replace_gpu(wanted: Wanted, catalog: Catalog, today: date) -> tuple[AcceleratorPlan, str]:
    """The plan to take instead, and the reason for the choice.

    GPUs with an announced end are taken only if there is no other.

    Raises:
        PlanError: the region has no replacement; names regions that have one.
    """
    lasting = [gpu for gpu in catalog.gpus.values() if gpu.ends is None]
    ending = [gpu for gpu in catalog.gpus.values() if gpu.ends is not None and not gpu.has_ended(today)]
    candidates = _candidates(wanted, lasting, catalog, today) or _candidates(wanted, ending, catalog, today)
    if not candidates:
        # Refused in the plan's own words, which name the regions that have it.
        return plan_request(_request(wanted, wanted.gpu.replacements[0], None), catalog=catalog, today=today), ""
    return candidates[0].plan, _reason(wanted, candidates)


def _candidates(wanted: Wanted, gpus: Iterable[Gpu], catalog: Catalog, today: date) -> list[_Candidate]:
    """The possible replacements, the cheapest first."""
    found = []
    for gpu in gpus:
        if gpu.memory_gb < wanted.gpu.memory_gb or wanted.count not in catalog.counts(gpu.name):
            continue
        plan = _plan(wanted, gpu.name, catalog, today)
        cost = estimate_cost(plan, catalog=catalog) if plan else None
        if plan is None or plan.machine is None or cost is None:
            continue
        prices = [cost.here] if cost.here else [] if plan.region else list(cost.regions)
        for price in prices[:1]:
            if (per_hour := cost.per_hour(price)) is not None:
                found.append(_Candidate(plan, gpu, plan.machine, price.region, per_hour, cost))
    return sorted(found, key=lambda candidate: candidate.usd_per_hour)


def _plan(wanted: Wanted, gpu: str, catalog: Catalog, today: date) -> AcceleratorPlan | None:
    """A plan with at least the main memory of the old machine, else with what is available."""
    for memory_gb in (wanted.machine.memory_gb, None):
        request = _request(wanted, gpu, memory_gb)
        checked = check(request, catalog, today)
        if not checked.findings and all(
            machine.offered(request.chosen_strategy) == "yes" for machine in checked.machines
        ):
            return plan_request(request, catalog=catalog, today=today)
    return None


def _request(wanted: Wanted, gpu: str, memory_gb: float | None) -> PlanRequest:
    old = wanted.request
    return PlanRequest(
        spec=f"{gpu}:{wanted.count}",
        nodes=old.nodes,
        region=old.region,
        strategy=old.strategy,
        hours=old.hours,
        memory_gb=memory_gb,
    )


def _reason(wanted: Wanted, candidates: list[_Candidate]) -> str:
    old, count, chosen = wanted.gpu, wanted.count, candidates[0]
    gpu, machine, before = chosen.gpu, chosen.machine, wanted.machine
    text = (
        f"{old.name} ({old.memory_gb} GB) is gone: Google Cloud shut it down on {old.ends}. Taken instead: {count} × "
        f"{gpu.name} ({gpu.memory_gb} GB each) on {machine.name}, the cheapest with at least as much GPU memory "
        f"{_where(chosen)}, with {_dollars(chosen)}"
    )
    if len(candidates) > 1:
        other = candidates[1]
        text += f"; the next is {other.plan.spec} on {other.plan.machine_type} with {_dollars(other)}"
    text += f" (list prices of {chosen.cost.as_of or 'unknown date'})."
    speed, speed_before = gpu.memory_bandwidth_gb_s, old.memory_bandwidth_gb_s
    if speed < speed_before:
        text += f" Its memory is slower: {speed} GB/s, where {old.name} had {speed_before} GB/s."
    if machine.memory_gb < before.memory_gb:
        text += f" Main memory is {machine.memory_gb:g} GB, where {before.name} had {before.memory_gb:g} GB."
    if machine.vcpus < before.vcpus:
        text += f" It has {machine.vcpus} vCPUs, where {before.name} had {before.vcpus}."
    return text


def _where(candidate: _Candidate) -> str:
    return f"in {candidate.region}" if candidate.plan.region else f"of all regions, in {candidate.region}"


def _dollars(candidate: _Candidate) -> str:
    return f"{candidate.usd_per_hour / candidate.plan.nodes:,.2f} USD per machine and hour"

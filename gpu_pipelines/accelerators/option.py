"""One plan for a training job: how it fits, how long it takes and what it costs; or why the plan will not do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpu_pipelines.accelerators.catalog import Catalog, Gpu
from gpu_pipelines.accelerators.cost import RegionPrice, estimate_cost, price_in
from gpu_pipelines.accelerators.memory_estimate import USABLE, MemoryEstimate, estimate_memory, host_memory_gb
from gpu_pipelines.accelerators.plan import AcceleratorPlan
from gpu_pipelines.accelerators.rules import MAX_HOURS
from gpu_pipelines.accelerators.time_estimate import (
    TimeEstimate,
    assumed_mfu,
    estimate_time,
    peak_tflops,
    project_time,
    spot_factor,
)
from gpu_pipelines.accelerators.workload import NOT_SHARDED, Workload

#: Hours of the pipeline's other steps together: each starts a small machine, prepares, evaluates or uploads. An
#: assumption, as is the machine.
OTHER_STEPS_HOURS = 0.5
OTHER_STEPS_MACHINE = "n1-standard-16"
#: How much faster a job must get for its activations to be recomputed although it fits without.
WORTH_RECOMPUTING = 1.1
#: Fewest steps to leave a training when the batch is chosen: with fewer, a larger batch only learns less.
LEAST_STEPS = 1000
#: Tokens, or samples without tokens, above which a larger batch does not make a GPU faster.
ENOUGH_TOKENS, ENOUGH_SAMPLES = 65_536, 256


@dataclass(frozen=True)
class Wishes:
    """Limits and choices of the user.

    Attributes:
        deadline_hours: longest the pipeline may take; None for `USUAL_DEADLINE_HOURS`, if anything keeps to it.
        budget_usd: most it may cost; None for no limit.
        region: region to run in; None takes the cheapest for each plan.
        strategy: strategy to buy by; None takes standard, and a reservation if nothing else is sold.
        accelerator: the only specification to consider; None for all GPUs, whole.
        max_nodes: most nodes to consider.
        mfu: model FLOPs utilization to estimate with, 0 to 1; None takes that of published trainings on each GPU.
    """

    deadline_hours: float | None = None
    budget_usd: float | None = None
    region: str | None = None
    strategy: str | None = None
    max_nodes: int = 4
    mfu: float | None = None
    accelerator: str | None = None


@dataclass(frozen=True)
class Option:
    """One plan for the job.

    Attributes:
        plan: the plan.
        precision: precision it trains in.
        batch: samples that one GPU takes through the model at once; None for a measured job.
        recompute: whether activations are recomputed; None for a measured job.
        selective: whether recomputation leaves out attention and every second matrix multiplication.
        mfu: model FLOPs utilization that the time is based on; None for a measured job.
        is_mfu_given: whether the user gave it.
        memory: memory of one GPU; None for a measured job.
        memory_gb: what one GPU needs, GB; None if a measured job gave none.
        usable_gb: what one GPU has for it, GB.
        time: how long the training takes; None if it does not fit.
        price: price in the region, or in the cheapest one; None if no price is known.
        other_steps_usd: what the CPU machines of the pipeline's other steps cost, USD.
        reasons: why it will not do; empty if it will.
    """

    plan: AcceleratorPlan
    precision: str
    usable_gb: float
    price: RegionPrice | None
    batch: int | None = None
    recompute: bool | None = None
    selective: bool = False
    mfu: float | None = None
    is_mfu_given: bool = False
    memory: MemoryEstimate | None = None
    memory_gb: float | None = None
    time: TimeEstimate | None = None
    other_steps_usd: float = 0.0
    reasons: tuple[str, ...] = ()

    @property
    def on_demand(self) -> float | None:
        """Cost of the whole pipeline on demand, USD; None without a price or a time."""
        return self._cost(self.price.on_demand if self.price else None, 1.0)

    @property
    def spot(self) -> float | None:
        """Cost of the whole pipeline with the training on Spot, USD, with the assumed interruptions; or None."""
        return self._cost(self.price.spot if self.price else None, spot_factor(self.plan.nodes))

    @property
    def is_speed_unverified(self) -> bool:
        """Whether the time is based on an MFU that is neither from a published training nor from the user."""
        gpu = self.plan.gpu
        return self.mfu is not None and gpu is not None and "mfu" in gpu.unverified and not self.is_mfu_given

    @property
    def is_uncertain(self) -> bool:
        """Whether its price is unverified or not known, or the service may refuse to sell it."""
        contested = any(warning.code == "contested" for warning in self.plan.warnings)
        return self.price is None or self.price.unverified or contested

    def hours(self, spot: bool = False) -> float:
        """Hours from the request to the registered model; infinity if the training does not fit or get on."""
        if self.time is None:
            return math.inf
        return self.time.hours * (spot_factor(self.plan.nodes) if spot else 1.0) + OTHER_STEPS_HOURS

    def _cost(self, per_hour: float | None, factor: float) -> float | None:
        if per_hour is None or self.time is None or math.isinf(factor):
            return None
        return per_hour * self.time.hours * factor + self.other_steps_usd

    def to_json(self) -> dict[str, Any]:
        """The option as a JSON object."""
        return {
            "spec": self.plan.spec,
            "nodes": self.plan.nodes,
            "machine_type": self.plan.machine_type,
            "strategy": self.plan.strategy,
            "precision": self.precision,
            "parallelism": self.memory.parallelism if self.memory else None,
            "batch": self.batch,
            "recompute": self.recompute,
            "selective": self.selective,
            "mfu": self.mfu,
            "speed_unverified": self.is_speed_unverified,
            "memory_gb": {**vars(self.memory), "total": self.memory.total} if self.memory else self.memory_gb,
            "usable_gb": self.usable_gb,
            "hours": vars(self.time).copy() if self.time else None,
            "region": self.price.region if self.price else None,
            "on_demand_usd": self.on_demand,
            "spot_usd": self.spot,
            "warnings": [warning.code for warning in self.plan.warnings],
            "price_unverified": self.price.unverified if self.price else None,
            "reasons": list(self.reasons),
        }


def option_of(
    each: AcceleratorPlan, workload: Workload, wishes: Wishes, measured: AcceleratorPlan | None, catalog: Catalog
) -> Option:
    """The option that a plan is for a job, with the reasons if it will not do.

    Args:
        each: the plan.
        workload: the job.
        wishes: limits and choices.
        measured: the plan of a trial, of a measured job; else None.
        catalog: the facts.
    """
    assert each.gpu is not None
    usable = each.gpu.memory_gb * USABLE
    precision = each.precision if workload.precision == "auto" else workload.precision
    cost = estimate_cost(each, catalog=catalog)
    price = (cost.here or (None if wishes.region else next(iter(cost.regions), None))) if cost else None
    other = _other_steps_usd(catalog, price.region) if price else 0.0
    option = Option(each, precision, usable, price, other_steps_usd=other)
    if measured is None:
        option = _estimated(option, each.gpu, workload, wishes)
    else:
        option = _projected(option, each.gpu, workload, measured)
    return option if option.reasons else replace(option, reasons=_missed(option, wishes))


def _other_steps_usd(catalog: Catalog, region: str) -> float:
    """What the machines of the other steps cost; 0 if the region has no price for them."""
    price = price_in(catalog, None, 0, catalog.machine_types[OTHER_STEPS_MACHINE], region)
    return OTHER_STEPS_HOURS * (price.on_demand or 0.0) if price else 0.0


def _estimated(option: Option, gpu: Gpu, workload: Workload, wishes: Wishes) -> Option:
    if peak_tflops(gpu, option.precision) is None:
        return replace(option, reasons=(f"{gpu.name} has no {option.precision} tensor cores",))
    gpus, of_the_machine = option.plan.total_gpus, _too_large_for_the_machine(option.plan, workload)
    mfu = wishes.mfu or assumed_mfu(workload, gpu)
    ways = []
    for job, memory in _fitting(workload, option.precision, gpus, option.plan.nodes, option.usable_gb):
        time = estimate_time(job, gpu, option.precision, gpus, option.plan.nodes, option.plan.machine, memory, mfu)
        ways.append(
            replace(
                option,
                batch=job.batch,
                recompute=job.recompute,
                selective=job.selective,
                mfu=mfu,
                is_mfu_given=wishes.mfu is not None,
                memory=memory,
                memory_gb=memory.total,
                time=time,
            )
        )
    if ways:
        best = min(ways, key=lambda way: way.hours() * (WORTH_RECOMPUTING if way.recompute else 1.0))
        return replace(best, reasons=of_the_machine)
    job, memory = _smallest(workload, option.precision, gpus)
    option = replace(option, batch=job.batch, recompute=job.recompute, memory=memory, memory_gb=memory.total)
    return replace(option, reasons=(_too_large(option), *of_the_machine))


def _projected(option: Option, gpu: Gpu, workload: Workload, measured: AcceleratorPlan) -> Option:
    assert measured.gpu is not None
    needed = workload.measured_memory_gb
    option = replace(option, memory_gb=needed)
    if needed is not None and needed > option.usable_gb and gpu.name != measured.gpu.name:
        return replace(option, reasons=(_too_large(option),))
    plan = option.plan
    return replace(
        option, time=project_time(workload, measured.gpu, measured.total_gpus, gpu, plan.total_gpus, plan.nodes)
    )


def _too_large(option: Option) -> str:
    gpus = option.plan.total_gpus
    how = f"on {gpus} GPUs, sharded" if option.memory and option.memory.parallelism != "ddp" else "on one GPU"
    return f"needs {option.memory_gb:,.1f} GB {how}; {option.usable_gb:.1f} GB of each can be used"


def _too_large_for_the_machine(plan: AcceleratorPlan, workload: Workload) -> tuple[str, ...]:
    """What is wrong with the main memory of a plan's machine; empty if nothing is."""
    needed = host_memory_gb(workload)
    if plan.machine is None or needed <= plan.machine.memory_gb:
        return ()
    return (
        f"needs {needed:,.0f} GB of main memory, because its first process builds the model; "
        f"{plan.machine.name} has {plan.machine.memory_gb:,.0f} GB",
    )


def _missed(option: Option, wishes: Wishes) -> tuple[str, ...]:
    reasons = []
    hours = option.hours(wishes.strategy == "spot")
    if wishes.deadline_hours is not None and hours > wishes.deadline_hours:
        reasons.append(f"takes {hours:,.1f} hours; the deadline is {wishes.deadline_hours:g}")
    elif MAX_HOURS < hours < math.inf:
        reasons.append(f"takes {hours:,.0f} hours; a job can be given {MAX_HOURS:,}")
    if option.plan.max_hours is not None and hours > option.plan.max_hours:
        reasons.append(f"takes {hours:,.1f} hours; {option.plan.strategy} runs {option.plan.max_hours:g}")
    if math.isinf(hours):
        reasons.append(f"{option.plan.nodes} Spot machines would be interrupted too often to make progress")
    cost = counted_cost(option, wishes)
    if wishes.budget_usd is not None:
        if cost is None:
            reasons.append("has no known price, so the budget cannot be checked")
        elif cost > wishes.budget_usd:
            reasons.append(f"costs {cost:,.2f} USD; the budget is {wishes.budget_usd:,.2f}")
    return tuple(reasons)


def counted_cost(option: Option, wishes: Wishes) -> float | None:
    """The cost of an option with the requested strategy, USD; None if it is not known."""
    return option.spot if wishes.strategy == "spot" else option.on_demand


def _fitting(
    workload: Workload, precision: str, gpus: int, nodes: int, usable_gb: float
) -> list[tuple[Workload, MemoryEstimate]]:
    """The ways in which a job fits: without recomputed activations, with some and with all, if that is open.

    The weights are sharded as little as fits, as the engine does it; the batch, if it is open, is the largest power of
    two that fits.

    Args:
        workload: the job; not a measured one.
        precision: `bf16`, `fp16` or `fp32`.
        gpus: GPUs of all nodes together.
        nodes: number of nodes.
        usable_gb: memory of each that the job can plan with, GB.

    Returns:
        The job with batch and recomputation decided, and its memory; empty if it does not fit.
    """
    found = []
    jobs = [workload]
    if workload.recompute is None:
        some = [replace(workload, recompute=True, selective=True)] if workload.is_transformer else []
        jobs = [replace(workload, recompute=False), *some, replace(workload, recompute=True)]
    for job in jobs:
        for parallelism, shards in _sharding(job, gpus, nodes):
            ways = _by_batch(job, precision, gpus, parallelism, shards)
            fits = [way for way in ways if way[1].total <= usable_gb]
            if fits:
                found.append(fits[-1])
                break
    return found


def _smallest(workload: Workload, precision: str, gpus: int) -> tuple[Workload, MemoryEstimate]:
    """The way that takes the least memory, whether it fits or not; see `_fitting`."""
    recompute = workload.recompute is not False
    parallelism, _ = _sharding(workload, gpus, 1)[-1]
    return next(_by_batch(replace(workload, recompute=recompute), precision, gpus, parallelism, gpus))


def _sharding(workload: Workload, gpus: int, nodes: int) -> list[tuple[str, int]]:
    """The ways of sharding a model, the least first, each with the GPUs over which it is sharded."""
    ways = [("ddp", 1)]
    if workload.optimizer in NOT_SHARDED:
        return ways
    if 1 < nodes < gpus:
        ways.append(("hsdp", gpus // nodes))
    return [*ways, ("fsdp", gpus)] if gpus > 1 else ways


def _by_batch(
    workload: Workload, precision: str, gpus: int, parallelism: str, shards: int
) -> Iterator[tuple[Workload, MemoryEstimate]]:
    """The job with each batch that is worthwhile, the smallest first."""
    batch = workload.batch or 1
    enough = ENOUGH_TOKENS / workload.sequence_length if workload.is_transformer else ENOUGH_SAMPLES
    most = batch if workload.batch else min(enough, workload.total_samples / gpus / LEAST_STEPS)
    while True:
        tried = replace(workload, batch=batch)
        yield tried, estimate_memory(tried, precision, shards, parallelism)
        batch *= 2
        if batch > most:
            return

"""Which accelerators a training job fits on, how long it takes there and at what cost; and why others do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from gpu_pipelines.accelerators.catalog import Catalog, Gpu, load_catalog
from gpu_pipelines.accelerators.cost import RegionPrice, estimate_cost
from gpu_pipelines.accelerators.memory_estimate import RUNTIME_GB, USABLE, MemoryEstimate, estimate_memory
from gpu_pipelines.accelerators.plan import AcceleratorPlan, PlanError, plan
from gpu_pipelines.accelerators.request import STRATEGIES
from gpu_pipelines.accelerators.time_estimate import (
    ASSUMED_MFU,
    ASSUMED_SCALING,
    TimeEstimate,
    estimate_time,
    peak_tflops,
    project_time,
)
from gpu_pipelines.accelerators.workload import Workload
from gpu_pipelines.errors import UserError


@dataclass(frozen=True)
class Option:
    """One plan for the job.

    Attributes:
        plan: the plan.
        precision: precision it trains in.
        memory: memory of one GPU; None for a measured job.
        memory_gb: what one GPU needs, GB; None if a measured job gave none.
        usable_gb: what one GPU has for it, GB.
        time: how long it takes; None if it does not fit.
        price: price in the region, or in the cheapest one; None if no price is known.
        reasons: why it will not do; empty if it will.
    """

    plan: AcceleratorPlan
    precision: str
    memory: MemoryEstimate | None
    memory_gb: float | None
    usable_gb: float
    time: TimeEstimate | None
    price: RegionPrice | None
    reasons: tuple[str, ...]

    @property
    def on_demand(self) -> float | None:
        """Cost of the whole job on demand, USD; None without a price or a time."""
        return self._cost(self.price.on_demand if self.price else None)

    @property
    def spot(self) -> float | None:
        """Cost of the whole job on Spot, USD, if it is never interrupted; None without a price or a time."""
        return self._cost(self.price.spot if self.price else None)

    def _cost(self, per_hour: float | None) -> float | None:
        return None if per_hour is None or self.time is None else per_hour * self.time.hours

    def to_json(self) -> dict[str, Any]:
        """The option as a JSON object."""
        return {
            "spec": self.plan.spec,
            "nodes": self.plan.nodes,
            "machine_type": self.plan.machine_type,
            "strategy": self.plan.strategy,
            "precision": self.precision,
            "parallelism": self.memory.parallelism if self.memory else None,
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


@dataclass(frozen=True)
class Advice:
    """Every option for a job.

    Attributes:
        workload: the job.
        options: plans that will do, the cheapest first.
        rejected: for each GPU of which no plan will do, the plan that comes nearest, with the reasons.
        assumptions: what the figures rest on.
    """

    workload: Workload
    options: tuple[Option, ...]
    rejected: tuple[Option, ...]
    assumptions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The advice as a JSON object."""
        return {
            "workload": self.workload.to_json(),
            "options": [option.to_json() for option in self.options],
            "rejected": [option.to_json() for option in self.rejected],
            "assumptions": list(self.assumptions),
        }


@dataclass(frozen=True)
class Wishes:
    """What the user wants of the outcome.

    Attributes:
        deadline_hours: longest the job may take; None for no limit.
        budget_usd: most it may cost; None for no limit.
        region: region to run in; None takes the cheapest for each plan.
        strategy: strategy to buy by; None takes standard, and a reservation where nothing else is sold.
        max_nodes: most nodes to consider.
        mfu: model FLOPs utilization to reckon with, 0 to 1; None takes `ASSUMED_MFU`.
    """

    deadline_hours: float | None = None
    budget_usd: float | None = None
    region: str | None = None
    strategy: str | None = None
    max_nodes: int = 4
    mfu: float | None = None


def advise(
    workload: Workload, wishes: Wishes | None = None, *, catalog: Catalog | None = None, today: date | None = None
) -> Advice:
    """Ranks the accelerators for a job.

    Args:
        workload: the job.
        wishes: limits and choices.
        catalog: the facts; None takes those of the package.
        today: the day that ended GPUs are judged by; None takes today.

    Raises:
        UserError: if a wish is out of range, or the trial's specification is wrong.
    """
    facts, asked, day = catalog or load_catalog(), wishes or Wishes(), today or date.today()
    _check_wishes(asked, facts)
    measured = plan(workload.measured_on, catalog=facts, today=day) if workload.measured_on is not None else None
    if measured is not None and measured.gpu is None:
        raise UserError("A trial on CPU processes says nothing of GPUs.", "Measure on a GPU, for example l4:1.")
    options: list[Option] = []
    rejected: dict[str, Option] = {}
    for each in _candidates(asked, facts, day):
        option = _option(each, workload, asked, measured, facts)
        name = each.gpu.name if each.gpu else ""
        if not option.reasons:
            options.append(option)
        elif name not in rejected or len(option.reasons) <= len(rejected[name].reasons):
            rejected[name] = option
    good = {option.plan.gpu.name for option in options if option.plan.gpu}
    return Advice(
        workload,
        tuple(sorted(options, key=lambda option: _rank(option, asked))),
        tuple(option for name, option in rejected.items() if name not in good),
        _assumptions(workload, asked),
    )


def _check_wishes(wishes: Wishes, catalog: Catalog) -> None:
    problems = []
    for name, value in (("deadline", wishes.deadline_hours), ("budget", wishes.budget_usd)):
        if value is not None and not 0 < value < float("inf"):
            problems.append(f"The {name} is {value:g}; it must be more than 0.")
    if wishes.mfu is not None and not 0 < wishes.mfu <= 1:
        problems.append(f"The MFU is {wishes.mfu:g}; it is more than 0 and at most 1.")
    if not 1 <= wishes.max_nodes <= 64:
        problems.append(f"{wishes.max_nodes} nodes cannot be advised on; 1 to 64 can.")
    if wishes.region is not None and wishes.region not in catalog.regions:
        problems.append(f"There is no region {wishes.region[:40]!r} with GPUs.")
    if wishes.strategy not in (None, *STRATEGIES):
        problems.append(f"There is no strategy {str(wishes.strategy)[:40]!r}.")
    if problems:
        raise UserError.of_all(problems)


def _candidates(wishes: Wishes, catalog: Catalog, today: date) -> Iterator[AcceleratorPlan]:
    """Every GPU in every number on one machine, and in the largest on 2, 4, 8 … machines."""
    for gpu in catalog.gpus.values():
        counts = catalog.counts(gpu.name)
        nodes = [2**power for power in range(7) if 2**power <= wishes.max_nodes]
        for count, number in [*((count, 1) for count in counts), *((counts[-1], number) for number in nodes[1:])]:
            for strategy in (wishes.strategy, "reservation"):
                try:
                    yield plan(
                        f"{gpu.name}:{count}",
                        nodes=number,
                        region=wishes.region,
                        strategy=strategy,
                        catalog=catalog,
                        today=today,
                    )
                    break
                except PlanError:
                    if wishes.strategy is not None:
                        break


def _option(
    each: AcceleratorPlan, workload: Workload, wishes: Wishes, measured: AcceleratorPlan | None, catalog: Catalog
) -> Option:
    assert each.gpu is not None
    usable = each.gpu.memory_gb * USABLE
    precision = each.precision if workload.precision == "auto" else workload.precision
    cost = estimate_cost(each, catalog=catalog)
    price = (cost.here or (None if wishes.region else next(iter(cost.regions), None))) if cost else None
    option = Option(each, precision, None, workload.measured_memory_gb, usable, None, price, ())
    if measured is None:
        option = _estimated(option, each.gpu, workload, wishes)
    else:
        option = _projected(option, each.gpu, workload, measured)
    return option if option.reasons else replace(option, reasons=_missed(option, wishes))


def _estimated(option: Option, gpu: Gpu, workload: Workload, wishes: Wishes) -> Option:
    if peak_tflops(gpu, option.precision) is None:
        return replace(option, reasons=(f"{gpu.name} has no {option.precision} tensor cores",))
    gpus = option.plan.total_gpus
    memory = estimate_memory(workload, option.precision, gpus, "ddp")
    if memory.total > option.usable_gb and gpus > 1:
        memory = estimate_memory(workload, option.precision, gpus, "fsdp")
    option = replace(option, memory=memory, memory_gb=memory.total)
    if memory.total > option.usable_gb:
        return replace(option, reasons=(_too_large(option),))
    machine = option.plan.machine
    time = estimate_time(
        workload,
        gpu,
        option.precision,
        gpus,
        option.plan.nodes,
        machine.network_gbps if machine else None,
        memory,
        wishes.mfu or ASSUMED_MFU,
    )
    return replace(option, time=time)


def _projected(option: Option, gpu: Gpu, workload: Workload, measured: AcceleratorPlan) -> Option:
    assert measured.gpu is not None
    needed = workload.measured_memory_gb
    if needed is not None and needed > option.usable_gb and gpu.name != measured.gpu.name:
        return replace(option, reasons=(_too_large(option),))
    time = project_time(workload, measured.gpu, measured.total_gpus, gpu, option.plan.total_gpus)
    return replace(option, time=time)


def _too_large(option: Option) -> str:
    gpus = option.plan.total_gpus
    how = f"on {gpus} GPUs, sharded" if option.memory and option.memory.parallelism == "fsdp" else "on one GPU"
    return f"needs {option.memory_gb:,.1f} GB {how}; {option.usable_gb:.1f} GB of each can be used"


def _missed(option: Option, wishes: Wishes) -> tuple[str, ...]:
    reasons = []
    hours = option.time.hours if option.time else 0.0
    if wishes.deadline_hours is not None and hours > wishes.deadline_hours:
        reasons.append(f"takes {hours:,.1f} hours; the deadline is {wishes.deadline_hours:g}")
    if option.plan.max_hours is not None and hours > option.plan.max_hours:
        reasons.append(f"takes {hours:,.1f} hours; {option.plan.strategy} runs {option.plan.max_hours:g}")
    cost = _counted_cost(option, wishes)
    if wishes.budget_usd is not None:
        if cost is None:
            reasons.append("has no known price, so the budget cannot be checked")
        elif cost > wishes.budget_usd:
            reasons.append(f"costs {cost:,.2f} USD; the budget is {wishes.budget_usd:,.2f}")
    return tuple(reasons)


def _counted_cost(option: Option, wishes: Wishes) -> float | None:
    return option.spot if wishes.strategy == "spot" else option.on_demand


def _rank(option: Option, wishes: Wishes) -> tuple[float, float]:
    cost = _counted_cost(option, wishes)
    hours = option.time.hours if option.time else float("inf")
    # To the cent: the same GPU-hours on fewer or more machines cost the same, and then the faster plan is first.
    return (float("inf") if cost is None else round(cost, 2), hours)


def _assumptions(workload: Workload, wishes: Wishes) -> tuple[str, ...]:
    prices = "Spot prices are for a run without interruption; prices leave out Vertex AI's management fee."
    if workload.is_measured:
        return (
            f"Projected from {workload.measured_samples_per_second:g} samples/s on {workload.measured_on}: between the "
            "ratio of peak and that of memory bandwidth; the smaller gain is shown.",
            f"On more GPUs than measured, each keeps {ASSUMED_SCALING:g} of its throughput (assumed).",
            prices,
        )
    mfu = f"MFU {wishes.mfu:g} (given)" if wishes.mfu else f"MFU {ASSUMED_MFU:g} (assumed; give your own with --mfu)"
    return (
        f"{mfu}; the time is the longest of computation, memory traffic and exchange between nodes.",
        f"{RUNTIME_GB:g} GB for CUDA and NCCL, and {USABLE:.0%} of each GPU's memory usable (assumed).",
        prices,
    )

"""Which accelerators a training job fits on, how long it takes there and at what cost; and why others do not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from gpu_pipelines.accelerators.catalog import Catalog, Gpu, load_catalog
from gpu_pipelines.accelerators.cost import RegionPrice, estimate_cost, price_in
from gpu_pipelines.accelerators.fitting import fitting, smallest
from gpu_pipelines.accelerators.memory_estimate import RUNTIME_GB, USABLE, MemoryEstimate
from gpu_pipelines.accelerators.plan import AcceleratorPlan, PlanError, plan
from gpu_pipelines.accelerators.request import STRATEGIES
from gpu_pipelines.accelerators.time_estimate import (
    KEPT_WHEN_DOUBLED,
    TimeEstimate,
    assumed_mfu,
    estimate_time,
    peak_tflops,
    project_time,
    spot_factor,
    start_hours,
)
from gpu_pipelines.accelerators.workload import Workload
from gpu_pipelines.errors import UserError

#: A week: what a job may take where no deadline is given. Vertex AI ends a custom job after as long by default.
USUAL_DEADLINE_HOURS = 168.0
#: Hours of the pipeline's other steps together: each starts a small machine, prepares, evaluates or uploads. An
#: assumption. A machine of this size is reckoned for them.
OTHER_STEPS_HOURS = 0.5
OTHER_STEPS_MACHINE = "n1-standard-16"
#: What a plan is thought dearer by for each doubling of its GPUs: more of them are harder to get. An assumption, which
#: decides between plans that cost nearly the same.
DEARER_WHEN_DOUBLED = 0.03
#: What a plan is thought dearer by if no training is known that was published with its GPU. An assumption: it is by how
#: much the estimates for the other GPUs differ from published figures at most.
DEARER_IF_UNVERIFIED = 0.25
#: How much sooner a job has to be done for its activations to be recomputed where it fits without.
WORTH_RECOMPUTING = 1.1


@dataclass(frozen=True)
class Option:
    """One plan for the job.

    Attributes:
        plan: the plan.
        precision: precision it trains in.
        batch: samples that one GPU takes through the model at once; None for a measured job.
        recompute: whether activations are recomputed; None for a measured job.
        mfu: model FLOPs utilization that the time rests on; None for a measured job.
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
        """Cost of the whole pipeline with the training on Spot, USD, as often interrupted as is assumed; or None."""
        return self._cost(self.price.spot if self.price else None, spot_factor(self.plan.nodes))

    @property
    def is_speed_unverified(self) -> bool:
        """Whether the time rests on an MFU for which no published training speaks, and which the user did not give."""
        gpu = self.plan.gpu
        return self.mfu is not None and gpu is not None and "mfu" in gpu.unverified and not self.is_mfu_given

    @property
    def is_uncertain(self) -> bool:
        """Whether its price rests on a weak source or is not known, or the service may refuse to sell it."""
        contested = any(warning.code == "contested" for warning in self.plan.warnings)
        return self.price is None or self.price.unverified or contested

    def hours(self, spot: bool = False) -> float:
        """Hours from the request to the registered model; infinity where the training does not fit or get on."""
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


@dataclass(frozen=True)
class Advice:
    """Every option for a job.

    Attributes:
        workload: the job.
        options: plans that will do, the best first: those with a verified price that the service surely sells, by cost;
            of two that cost nearly the same the smaller.
        rejected: for each GPU of which no plan will do, the plan that comes nearest, with the reasons.
        assumptions: what the figures rest on.
        remedies: where no plan will do, changes to the job with which one would.
    """

    workload: Workload
    options: tuple[Option, ...]
    rejected: tuple[Option, ...]
    assumptions: tuple[str, ...]
    remedies: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The advice as a JSON object."""
        return {
            "workload": self.workload.to_json(),
            "options": [option.to_json() for option in self.options],
            "rejected": [option.to_json() for option in self.rejected],
            "assumptions": list(self.assumptions),
            "remedies": list(self.remedies),
        }


@dataclass(frozen=True)
class Wishes:
    """What the user wants of the outcome.

    Attributes:
        deadline_hours: longest the pipeline may take; None for `USUAL_DEADLINE_HOURS`, where anything keeps to it.
        budget_usd: most it may cost; None for no limit.
        region: region to run in; None takes the cheapest for each plan.
        strategy: strategy to buy by; None takes standard, and a reservation where nothing else is sold.
        max_nodes: most nodes to consider.
        mfu: model FLOPs utilization to reckon with, 0 to 1; None takes that of published trainings on each GPU.
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
        () if options or measured is not None else _remedies(workload, asked, facts, day),
    )


def _remedies(workload: Workload, wishes: Wishes, catalog: Catalog, today: date) -> tuple[str, ...]:
    """What would help a job that no plan will do, each with the first plan that it would do on."""
    more = replace(wishes, max_nodes=64)
    tries = [
        ("recomputed activations (--recompute)", replace(workload, recompute=None), wishes),
        ("a smaller batch of each GPU (--batch 1)", replace(workload, batch=None), wishes),
        (
            "recomputed activations and a smaller batch (--recompute, --batch 1)",
            replace(workload, recompute=None, batch=None),
            wishes,
        ),
        ("an 8-bit optimizer (--optimizer adamw-8bit)", replace(workload, optimizer="adamw-8bit"), wishes),
        ("LoRA (--lora-rank 16)", replace(workload, lora_rank=workload.lora_rank or 16), wishes),
        ("more nodes (--max-nodes 64)", workload, more),
        ("no deadline", workload, replace(wishes, deadline_hours=None)),
        ("no budget", workload, replace(wishes, budget_usd=None)),
    ]
    found = []
    tried: list[tuple[Workload, Wishes]] = [(workload, wishes)]
    for what, job, asked in tries:
        if (job, asked) in tried:
            continue
        tried.append((job, asked))
        options = [
            option
            for each in _candidates(asked, catalog, today)
            if not (option := _option(each, job, asked, None, catalog)).reasons
        ]
        if options:
            best = min(options, key=lambda option: _rank(option, asked))
            nodes = f" × {best.plan.nodes} nodes" if best.plan.nodes > 1 else ""
            found.append(f"With {what} it would do on {best.plan.spec}{nodes}.")
    return tuple(found)


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
    other = _other_steps_usd(catalog, price.region) if price else 0.0
    option = Option(each, precision, usable, price, other_steps_usd=other)
    if measured is None:
        option = _estimated(option, each.gpu, workload, wishes)
    else:
        option = _projected(option, each.gpu, workload, measured)
    return option if option.reasons else replace(option, reasons=_missed(option, wishes))


def _other_steps_usd(catalog: Catalog, region: str) -> float:
    """What the machines of the other steps cost; nothing where the region has no price for them."""
    price = price_in(catalog, None, 0, catalog.machine_types[OTHER_STEPS_MACHINE], region)
    return OTHER_STEPS_HOURS * (price.on_demand or 0.0) if price else 0.0


def _estimated(option: Option, gpu: Gpu, workload: Workload, wishes: Wishes) -> Option:
    if peak_tflops(gpu, option.precision) is None:
        return replace(option, reasons=(f"{gpu.name} has no {option.precision} tensor cores",))
    gpus = option.plan.total_gpus
    mfu = wishes.mfu or assumed_mfu(workload, gpu)
    ways = []
    for job, memory in fitting(workload, option.precision, gpus, option.usable_gb):
        time = estimate_time(job, gpu, option.precision, gpus, option.plan.nodes, option.plan.machine, memory, mfu)
        ways.append(
            replace(
                option,
                batch=job.batch,
                recompute=job.recompute,
                mfu=mfu,
                is_mfu_given=wishes.mfu is not None,
                memory=memory,
                memory_gb=memory.total,
                time=time,
            )
        )
    if ways:
        return min(ways, key=lambda way: way.hours() * (WORTH_RECOMPUTING if way.recompute else 1.0))
    job, memory = smallest(workload, option.precision, gpus)
    option = replace(option, batch=job.batch, recompute=job.recompute, memory=memory, memory_gb=memory.total)
    return replace(option, reasons=(_too_large(option),))


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
    how = f"on {gpus} GPUs, sharded" if option.memory and option.memory.parallelism == "fsdp" else "on one GPU"
    return f"needs {option.memory_gb:,.1f} GB {how}; {option.usable_gb:.1f} GB of each can be used"


def _missed(option: Option, wishes: Wishes) -> tuple[str, ...]:
    reasons = []
    hours = option.hours(wishes.strategy == "spot")
    if wishes.deadline_hours is not None and hours > wishes.deadline_hours:
        reasons.append(f"takes {hours:,.1f} hours; the deadline is {wishes.deadline_hours:g}")
    if option.plan.max_hours is not None and hours > option.plan.max_hours:
        reasons.append(f"takes {hours:,.1f} hours; {option.plan.strategy} runs {option.plan.max_hours:g}")
    if math.isinf(hours):
        reasons.append(f"{option.plan.nodes} Spot machines would be interrupted too often to get on")
    cost = _counted_cost(option, wishes)
    if wishes.budget_usd is not None:
        if cost is None:
            reasons.append("has no known price, so the budget cannot be checked")
        elif cost > wishes.budget_usd:
            reasons.append(f"costs {cost:,.2f} USD; the budget is {wishes.budget_usd:,.2f}")
    return tuple(reasons)


def _counted_cost(option: Option, wishes: Wishes) -> float | None:
    return option.spot if wishes.strategy == "spot" else option.on_demand


def _rank(option: Option, wishes: Wishes) -> tuple[bool, bool, float, int]:
    """First what surely can be had in a usual time, then the cheapest, of nearly the same cost the smallest."""
    cost = _counted_cost(option, wishes)
    too_long = option.hours(wishes.strategy == "spot") > (wishes.deadline_hours or USUAL_DEADLINE_HOURS)
    dearer = 1 + DEARER_WHEN_DOUBLED * math.log2(option.plan.total_gpus)
    dearer += DEARER_IF_UNVERIFIED if option.is_speed_unverified else 0.0
    return (too_long, option.is_uncertain, math.inf if cost is None else cost * dearer, option.plan.total_gpus)


def _assumptions(workload: Workload, wishes: Wishes) -> tuple[str, ...]:
    prices = (
        "USD of the whole pipeline, CPU steps too; Spot with one interruption a day of each machine (assumed); without "
        "Vertex AI's management fee."
    )
    start = f"Hours are of the training, with {start_hours(1) * 60:.0f} minutes to start a machine (assumed)."
    if workload.is_measured:
        return (
            f"Projected from {workload.measured_samples_per_second:g} samples/s on {workload.measured_on}: between the "
            "ratio of peak and that of memory bandwidth; the smaller gain is shown.",
            f"On twice as many GPUs, each keeps {KEPT_WHEN_DOUBLED:g} of its throughput (assumed).",
            start,
            prices,
        )
    mfu = f"MFU {wishes.mfu:g} (given)" if wishes.mfu else "MFU of published trainings on each GPU (--mfu for your own)"
    found = [
        f"{mfu}; a step takes its longest part (computation, memory, links, network) and a tenth of the others.",
        f"{RUNTIME_GB:g} GB for CUDA and NCCL, and {USABLE:.0%} of each GPU's memory usable (assumed).",
        start,
        prices,
    ]
    if not workload.is_transformer and workload.activation_bytes_per_sample is None:
        found.insert(
            1,
            "Activations by a rule of thumb for convolutions, which is an upper bound; --activations-per-sample or a "
            "trial says more.",
        )
    return tuple(found)

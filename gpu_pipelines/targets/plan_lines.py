"""Lines about plans, for people: the machines, their cost, and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.cost import CostEstimate, estimate_cost


def told_plan(plan: AcceleratorPlan) -> str:
    """A plan on one line."""
    machines = f"{plan.nodes} × {plan.machine_type}" if plan.nodes > 1 else str(plan.machine_type)
    return f"{plan.spec} on {machines}: {plan.total_gpus} GPUs, {plan.strategy}"


def told_cost(plan: AcceleratorPlan) -> str:
    """The cost of a plan, on one line, with the date of the price list."""
    cost = estimate_cost(plan)
    if cost is None or not (prices := [cost.here] if cost.here else list(cost.regions)):
        return "no price is known"
    price = prices[0]
    per_hour, total = cost.per_hour(price), cost.total(price)
    if per_hour is None:
        return f"no {plan.strategy} price is known for {price.region}"
    told = f"about {per_hour:,.2f} USD per hour in {price.region}"
    if plan.region is None:
        told += ", the cheapest region"
    if plan.region and not cost.here:
        told = f"no price is known for {plan.region}; {told}"
    if total is not None:
        told += f", {total:,.2f} USD for {cost.hours:g} h"
    return f"{told} ({_told_list(cost)}; without fees, disks and traffic)"


def _told_list(cost: CostEstimate) -> str:
    kind = "spot" if cost.strategy == "spot" else "on-demand"
    return f"{kind} list price of {cost.as_of or 'unknown date'}"


def told_warnings(plans: Iterable[AcceleratorPlan]) -> list[str]:
    """Warnings about machines, line by line."""
    return [f"warning: {text}" for text in dict.fromkeys(c.message for plan in plans for c in plan.warnings)]


def told_machines(plans: Mapping[str, AcceleratorPlan]) -> list[str]:
    """The machines of the steps, line by line."""
    return [
        f"{step}: {plan.nodes} × {plan.machine_type} with {plan.count} × {plan.accelerator_type}"
        for step, plan in plans.items()
    ]


def told_price(plan: AcceleratorPlan, region: str | None, is_one_job: bool = True) -> str:
    """The cost of a step's machines per hour, and for the longest time that it may have them; the end of a line.

    Args:
        plan: the machines.
        region: where they are, if the plan leaves that open.
        is_one_job: whether the step has them once, and not for each turn of a loop or each trial of a search.
    """
    region = plan.region or region
    cost = estimate_cost(plan)
    price = cost.per_hour(cost.here) if cost and cost.here else None
    if cost is None or cost.here is None or price is None:
        return f"; no price is known for {region}{told_limit(plan)}"
    kind = "spot" if plan.strategy == "spot" else "on demand"
    unverified = ", unverified" if cost.here.unverified else ""
    total = f": ${price * plan.hours:,.2f}{'' if is_one_job else ' each'}" if plan.hours else ""
    return (
        f", about ${price:,.2f} an hour "
        f"({kind}, {region}; list prices of {cost.as_of or 'unknown date'}{unverified}){told_limit(plan)}{total}"
    )


def told_limit(plan: AcceleratorPlan) -> str:
    """The time limit of a step's machines; empty if there is none."""
    return f", {plan.hours:g} h at most" if plan.hours else ""

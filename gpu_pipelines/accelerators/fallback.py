"""Choices of machines in the order in which they are tried, until one is available.

The order is that of the lists: the first accelerator in all ways and places before the second, the first way to buy it
in all places before the second. The place changes fastest, because it costs the least to change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from gpu_pipelines.accelerators.cost import dollars_per_hour
from gpu_pipelines.accelerators.plan import AcceleratorPlan, PlanError, plan
from gpu_pipelines.errors import InvalidRequestError, UserError, first_line

#: The shortest time for which a job is begun if a price limit ends it: in less, it does not even load its program.
LEAST_SECONDS = 300.0


@dataclass(frozen=True)
class PriceLimits:
    """The most that may be paid.

    Attributes:
        per_hour: USD per hour of all machines of a step together; None for no limit.
        total: USD for all tries of a step together; None for no limit.
    """

    per_hour: float | None = None
    total: float | None = None

    def __bool__(self) -> bool:
        return self.per_hour is not None or self.total is not None


@dataclass(frozen=True)
class Fallback:
    """What is tried, in order.

    Attributes:
        plans: the choices; one at least.
        left_out: requested choices that are not tried, each with the reason.
        limits: the most that may be paid.
    """

    plans: tuple[AcceleratorPlan, ...]
    left_out: tuple[str, ...] = ()
    limits: PriceLimits = PriceLimits()

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to fall back to, and no limit to hold."""
        return len(self.plans) == 1 and not self.limits

    def without(self, why: Callable[[AcceleratorPlan], str]) -> Fallback:
        """The same without the choices for which there is a reason.

        Raises:
            UserError: none is left.
        """
        found = [(plan, why(plan)) for plan in self.plans]
        kept = tuple(plan for plan, reason in found if not reason)
        left_out = (*self.left_out, *(f"{named(plan)}: {reason}" for plan, reason in found if reason))
        if not kept:
            raise UserError.of_all([f"There is nothing to train on: {reason}" for reason in left_out])
        return replace(self, plans=kept, left_out=left_out)

    def of_each(self, change: Callable[[AcceleratorPlan], AcceleratorPlan]) -> Fallback:
        """The same with each plan changed, without duplicates."""
        return replace(self, plans=tuple(_different([change(each) for each in self.plans])))


def fallback(
    specs: Sequence[str],
    strategies: Sequence[str | None] = (None,),
    regions: Sequence[str | None] = (None,),
    limits: PriceLimits = PriceLimits(),
    **bought: Any,
) -> Fallback:
    """Plans each combination.

    Args:
        specs: accelerators, `NAME:COUNT`.
        strategies: ways to buy them; None for the default.
        regions: where; None leaves it open.
        limits: the most that may be paid.
        bought: the rest, as `plan` takes it; a reservation is only for the strategy `reservation`.

    Raises:
        PlanError: there is one combination, and it cannot be planned.
        InvalidRequestError: none of several is available; with the reason for each.
    """
    found: list[AcceleratorPlan] = []
    left_out: list[str] = []
    reservation = bought.pop("reservation", None)
    wanted = list(product(specs, strategies, regions))
    for spec, strategy, region in wanted:
        of_it = reservation if strategy in (None, "reservation") else None
        try:
            planned = plan(spec, strategy=strategy, region=region, reservation=of_it, **bought)
        except PlanError as error:
            if len(wanted) == 1:
                raise
            left_out.append(f"{_asked(spec, strategy, region)}: {first_line(error)}")
            continue
        if reason := _too_dear(planned, limits):
            left_out.append(f"{named(planned)}: {reason}")
        else:
            found.append(planned)
    if not found:
        told = "".join(f"\n  - {each}" for each in left_out)
        raise InvalidRequestError(f"There is nothing to train on:{told}", "Name other machines, or raise the limit.")
    return Fallback(tuple(_different(found)), tuple(left_out), limits)


def fallback_of(fallbacks: Sequence[Fallback], planned: AcceleratorPlan | None) -> Fallback | None:
    """The fallback that begins with a plan; None if it has no other choice and no limit."""
    found = (each for each in fallbacks if each.plans[0] == planned and not each.is_plain)
    return next(found, None)


def named(planned: AcceleratorPlan) -> str:
    """A choice in words."""
    nodes = f" on {planned.nodes} nodes" if planned.nodes > 1 else ""
    return f"{planned.spec}{nodes} {planned.strategy}" + (f" in {planned.region}" if planned.region else "")


def _asked(spec: str, strategy: str | None, region: str | None) -> str:
    return " ".join(filter(None, (spec, strategy, f"in {region}" if region else "")))


def _too_dear(planned: AcceleratorPlan, limits: PriceLimits) -> str:
    """Why a plan is not within limits; empty if it is."""
    if not limits:
        return ""
    price = dollars_per_hour(planned)
    if price is None:
        return "no price is known, so no limit can be kept"
    if limits.per_hour is not None and price > limits.per_hour:
        return f"costs ${price:,.2f} an hour; --max-price-per-hour is {limits.per_hour:,.2f}"
    if limits.total is not None and planned.hours and price * planned.hours > limits.total:
        return f"costs ${price * planned.hours:,.2f} in {planned.hours:g} h; --max-price is {limits.total:,.2f}"
    if limits.total is not None and price and limits.total / price * 3600 < LEAST_SECONDS:
        least = f"${price * LEAST_SECONDS / 3600:,.2f} in the {LEAST_SECONDS / 60:g} minutes that a job is to last"
        return f"costs {least} at least; --max-price is {limits.total:,.2f}"
    return ""


def _different(plans: Sequence[AcceleratorPlan]) -> list[AcceleratorPlan]:
    found: list[AcceleratorPlan] = []
    for each in plans:
        if each not in found:
            found.append(each)
    return found

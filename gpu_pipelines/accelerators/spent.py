"""The cost of machines that ran: their hours, as the service reports them, times the prices of the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_pipelines.accelerators.catalog import Catalog, load_catalog
from gpu_pipelines.accelerators.cost import LEFT_OUT, RegionPrice, price_in

#: Why machines of a persistent resource have no price of their own.
OF_A_RESOURCE = "of the persistent resource {}, which costs as long as it exists"


@dataclass(frozen=True)
class MachineTime:
    """Machines that ran for a step: one try of it, or one pool of machines of a try.

    Attributes:
        step: name of the step.
        job: what the service calls the try, such as the number of a custom job; empty if it has no name of its own.
        machine: the machine type; empty if the service does not report it.
        gpu: the GPU's name in the catalog; empty for none.
        gpus: of each machine.
        machines: number of machines.
        seconds: for which each ran.
        strategy: how they were bought: standard, spot, flex-start or reservation.
        region: where they ran.
        free: why they cost nothing by themselves; empty if they do.
    """

    step: str
    job: str
    machine: str
    gpu: str
    gpus: int
    machines: int
    seconds: float
    strategy: str
    region: str
    free: str = ""

    @property
    def hours(self) -> float:
        """Of all machines together."""
        return self.machines * self.seconds / 3600

    @property
    def title(self) -> str:
        """The machines in words."""
        if not self.machine:
            return "an unknown machine"
        several = f"{self.machines} × " if self.machines > 1 else ""
        return f"{several}{self.machine}" + (f" with {self.gpu}:{self.gpus}" if self.gpu else "")


@dataclass(frozen=True)
class Line:
    """A try of a step with its price.

    Attributes:
        time: the machines.
        usd_per_hour: of one machine; None if no price is known.
        why: why there is no price, or what it is; empty if it is the price for the strategy.
    """

    time: MachineTime
    usd_per_hour: float | None
    why: str = ""

    @property
    def usd(self) -> float | None:
        """The cost of the machines; None if no price is known."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.time.hours

    def to_json(self) -> dict[str, Any]:
        """The line as a JSON object."""
        usd, per_hour = self.usd, self.usd_per_hour
        return {
            **asdict(self.time),
            "seconds": round(self.time.seconds, 1),
            "hours": round(self.time.hours, 4),
            "usd_per_hour": None if per_hour is None else round(per_hour, 4),
            "usd": None if usd is None else round(usd, 4),
            "why": self.why,
        }


@dataclass(frozen=True)
class Planned:
    """The planned cost of a step's machines.

    Attributes:
        usd_per_hour: of all its machines; of the dearest ones of a list.
        hours: the longest that they may run; None for no limit, as for a list, whose machines run one after the other.
        max_price: most that all steps of the run with this limit may cost together, USD; None for no such limit.
    """

    usd_per_hour: float
    hours: float | None
    max_price: float | None = None

    @property
    def at_most(self) -> float | None:
        """What they cost at their limit, USD."""
        by_hours = None if self.hours is None else self.usd_per_hour * self.hours
        return min((limit for limit in (by_hours, self.max_price) if limit is not None), default=None)


@dataclass(frozen=True)
class Billed:
    """What Google Cloud has billed for a run so far, by billing export to BigQuery.

    Attributes:
        amount: after credits, in `currency`.
        currency: of the billing account.
        until: end of the last usage that is in the export, ISO 8601; it is a day behind. Empty if there is none yet.
        label: by which the usage was found, KEY=VALUE.
        by_sku: amount of each SKU, the dearest first.
    """

    amount: float
    currency: str
    until: str
    label: str
    by_sku: Mapping[str, float] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """As a sentence."""
        if not self.until:
            return f"billed: nothing yet for {self.label}; billing export is hours to a day behind"
        return f"billed: {self.amount:,.2f} {self.currency} after credits, usage until {self.until[:16]} UTC"


@dataclass(frozen=True)
class Spent:
    """The cost of a run.

    Attributes:
        lines: its machines, by step and try.
        as_of: the oldest day of the price lists, ISO 8601; empty if none has a date.
        unverified: whether one of the prices is not verified.
        left_out: what the figures do not include.
        planned: the planned cost, by step.
        billed: what was billed; None if billing export is not set up.
        note: why there is no cost, or anything else to know; empty for nothing.
    """

    lines: Sequence[Line] = ()
    as_of: str = ""
    unverified: bool = False
    left_out: Sequence[str] = ()
    planned: Mapping[str, Planned] = field(default_factory=dict)
    billed: Billed | None = None
    note: str = ""

    @property
    def usd(self) -> float:
        """Of the machines whose price is known."""
        return sum(line.usd or 0.0 for line in self.lines)

    @property
    def hours(self) -> float:
        """Of all machines."""
        return sum(line.time.hours for line in self.lines)

    @property
    def without_price(self) -> list[str]:
        """The steps that have machines without a known price."""
        return list(dict.fromkeys(line.time.step for line in self.lines if line.usd is None))

    @property
    def at_most(self) -> float | None:
        """The planned cost of the run at its limits, USD; None if a limit or a price is not known."""
        at_most_by_limit: dict[float | None, float] = {}
        for each in self.planned.values():
            if each.at_most is None:
                return None
            at_most_by_limit[each.max_price] = at_most_by_limit.get(each.max_price, 0.0) + each.at_most
        limited = (usd if limit is None else min(usd, limit) for limit, usd in at_most_by_limit.items())
        return sum(limited) if self.planned else None

    @property
    def told(self) -> str:
        """The machines as a sentence."""
        if not self.lines:
            return self.note or "cost: no machine has run"
        several = self.hours >= 0.01
        hours = f"{self.hours:,.2f} machine hours" if several else f"{3600 * self.hours:,.0f} machine seconds"
        if all(line.usd is None for line in self.lines):
            return f"cost: not known for {hours}: no price is known of the machines of {', '.join(self.without_price)}"
        least = "at least " if self.without_price else ""
        prices = f"list prices of {self.as_of or 'unknown date'}{', unverified' if self.unverified else ''}"
        without = f"; without {', '.join(self.without_price)}, of unknown price" if self.without_price else ""
        limit = f"; ${self.at_most:,.2f} at most was planned" if self.at_most is not None else ""
        return f"cost: {least}{dollars(self.usd)} for {hours} ({prices}{without}){limit}"

    def figures(self) -> dict[str, float]:
        """The numbers for a tracker."""
        billed = {f"billed_{self.billed.currency.lower()}": round(self.billed.amount, 4)} if self.billed else {}
        planned = {"planned_usd_at_most": round(self.at_most, 2)} if self.at_most is not None else {}
        return {"cost_usd": round(self.usd, 4), "machine_hours": round(self.hours, 4), **planned, **billed}

    def to_json(self) -> dict[str, Any]:
        """The same as a JSON object."""
        return {
            "currency": "USD",
            "usd": round(self.usd, 4),
            "machine_hours": round(self.hours, 4),
            "without_price": self.without_price,
            "machines": [line.to_json() for line in self.lines],
            "as_of": self.as_of or None,
            "unverified": self.unverified,
            "left_out": list(self.left_out),
            "planned": {step: {**asdict(each), "at_most": each.at_most} for step, each in self.planned.items()},
            "planned_usd_at_most": self.at_most,
            "billed": asdict(self.billed) if self.billed else None,
            "note": self.note,
        }


def dollars(usd: float) -> str:
    """An amount with cents, or with four decimals if it is less than ten cents."""
    return f"${usd:,.2f}" if usd >= 0.1 or not usd else f"${usd:.4f}"


def spent_on(
    times: Iterable[MachineTime],
    left_out: Sequence[str] = LEFT_OUT,
    planned: Mapping[str, Planned] | None = None,
) -> Spent:
    """The cost of machines at the prices of the catalog.

    Args:
        times: the machines; those that never ran are left out.
        left_out: what the figures do not include.
        planned: the planned cost.
    """
    facts = load_catalog()
    found = [_priced(time, facts) for time in times if time.seconds > 0]
    prices = [price for _, price in found if price is not None]
    day = facts.as_of({source for price in prices for source in price.sources})
    return Spent(
        lines=[line for line, _ in found],
        as_of=day.isoformat() if day else "",
        unverified=any(price.unverified for price in prices),
        left_out=left_out,
        planned=planned or {},
    )


def _priced(time: MachineTime, catalog: Catalog) -> tuple[Line, RegionPrice | None]:
    """A line, and its price if that is from the list."""
    if time.free:
        return Line(time, 0.0, time.free), None
    machine = catalog.machine_types.get(time.machine)
    if machine is None:
        return Line(time, None, "no price is known"), None
    price = price_in(catalog, catalog.gpus.get(time.gpu), time.gpus, machine, time.region)
    per_hour = None if price is None else price.spot if time.strategy == "spot" else price.on_demand
    if price is None or per_hour is None:
        return Line(time, None, f"no price is known in {time.region}"), None
    return Line(time, per_hour, _kind(time.strategy)), price


def _kind(strategy: str) -> str:
    """A note on the price, if it is not the one that is paid."""
    if strategy == "flex-start":
        return "on demand, which Flex-start is below"
    return "on demand; a reservation is paid whether it is used or not" if strategy == "reservation" else ""

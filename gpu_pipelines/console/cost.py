"""The cost of a run on machines of the cloud: their list prices, for the time that its tasks took here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.accelerators import Catalog, load_catalog, plan
from gpu_pipelines.accelerators.cost import LEFT_OUT, RegionPrice, estimate_cost, price_in
from gpu_pipelines.console.shown import Task
from gpu_pipelines.dag.placement import EVALUATES, PREDICTS, RUNS_SCRIPT, TRAINS, TUNES
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.spec_steps import tasks_in

#: The steps of this project that use the accelerator.
_ON_THE_ACCELERATOR = (TRAINS, RUNS_SCRIPT, TUNES, EVALUATES, PREDICTS)
#: The default accelerator for the price of a run on this machine.
DEFAULT = "l4:1"
_POOLS = "worker_pool_specs"
#: The API's names for Spot, the current one and an earlier one.
_SPOT = ("SPOT", "LOW_COST")


@dataclass(frozen=True)
class Line:
    """A task in the table of costs: its machines, USD per hour, and how long it took here, seconds."""

    task: str
    machine: str
    per_hour: float
    seconds: float

    @property
    def usd(self) -> float:
        """Its cost in the cloud, USD."""
        return self.per_hour * self.seconds / 3600


@dataclass(frozen=True)
class Cost:
    """The cost of a run in the cloud.

    Attributes:
        lines: the tasks that have a price.
        region: the region of the prices.
        note: the date of the prices.
        left_out: what the cost does not include.
    """

    lines: Sequence[Line]
    region: str
    note: str
    left_out: Sequence[str] = LEFT_OUT

    @property
    def usd(self) -> float:
        """All of it."""
        return sum(line.usd for line in self.lines)


def cost_with(accelerator: str, tasks: Sequence[Task]) -> Cost | None:
    """The cost of the tasks of a run on this machine if they had an accelerator of the cloud.

    Args:
        accelerator: such as l4:1.
        tasks: the tasks of the run.

    Returns:
        The cost; None if no task uses the accelerator, or no price is known.

    Raises:
        UserError: there is no such accelerator.
    """
    taken = [task for task in tasks if task.seconds and task.name.startswith(_ON_THE_ACCELERATOR)]
    if not taken:
        return None
    try:
        planned = plan(accelerator)
    except ValueError as error:
        raise UserError(str(error)) from error
    estimate = estimate_cost(planned)
    prices = [estimate.here] if estimate and estimate.here else list(estimate.regions) if estimate else []
    per_hour = estimate.per_hour(prices[0]) if estimate and prices else None
    if estimate is None or per_hour is None or planned.machine is None:
        return None
    machine = f"{planned.machine.name} with {planned.spec}"
    lines = [Line(task.label, machine, per_hour, task.seconds or 0) for task in taken]
    return Cost(lines, prices[0].region, f"list prices of {estimate.as_of or 'unknown date'}")


def cost_of_jobs(spec: Mapping[str, Any], tasks: Sequence[Task], region: str) -> Cost | None:
    """The cost of the custom jobs of a compiled pipeline, on the machines in its file.

    Args:
        spec: the pipeline.
        tasks: the tasks of the run.
        region: the region of the prices.

    Returns:
        The cost; None if no task names machines with a known price.
    """
    catalog, jobs = load_catalog(), dict(_jobs(spec))
    lines, sources = [], set()
    for task in tasks:
        pools, is_spot = jobs.get(task.name.partition("-#")[0], ([], False))
        prices = [_priced(pool, region, catalog) for pool in pools]
        per_hour = [usd for _, price in prices if (usd := _usd(price, is_spot)) is not None]
        if not per_hour or len(per_hour) < len(prices) or not task.seconds:
            continue
        sources |= {source for _, price in prices if price is not None for source in price.sources}
        machines = ", ".join(machine for machine, _ in prices)
        lines.append(Line(task.label, f"{machines}, spot" if is_spot else machines, sum(per_hour), task.seconds))
    return Cost(lines, region, f"list prices of {catalog.as_of(sources) or 'unknown date'}") if lines else None


def _jobs(spec: Mapping[str, Any]) -> Iterator[tuple[str, tuple[list[dict[str, Any]], bool]]]:
    """The worker pools of each task that has some, from the task or its component, and whether they are on Spot."""
    components = spec.get("components", {})
    for name, task in tasks_in(spec):
        component = components.get(task.get("componentRef", {}).get("name"), {})
        declared = component.get("inputDefinitions", {}).get("parameters", {})
        values = {key: each.get("defaultValue") for key, each in declared.items()}
        for key, given in task.get("inputs", {}).get("parameters", {}).items():
            values[key] = given.get("runtimeValue", {}).get("constant")
        if isinstance(pools := values.get(_POOLS), list):
            used = [pool for pool in pools if isinstance(pool, dict) and pool.get("machine_spec")]
            yield name, (used, values.get("strategy") in _SPOT)


def _usd(price: RegionPrice | None, is_spot: bool) -> float | None:
    return None if price is None else price.spot if is_spot else price.on_demand


def _priced(pool: Mapping[str, Any], region: str, catalog: Catalog) -> tuple[str, RegionPrice | None]:
    machine_spec, nodes = pool["machine_spec"], int(pool.get("replica_count", 1))
    machine = catalog.machine_types.get(machine_spec.get("machine_type", ""))
    gpu = next((gpu for gpu in catalog.gpus.values() if gpu.enum == machine_spec.get("accelerator_type")), None)
    if machine is None:
        return "", None
    count = int(machine_spec.get("accelerator_count", 0))
    told = (f"{nodes} × " if nodes > 1 else "") + machine.name + (f" with {gpu.name}:{count}" if gpu else "")
    return told, price_in(catalog, gpu, count, machine, region, nodes)

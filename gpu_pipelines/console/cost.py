"""What a run would have cost on machines of the cloud: their list prices, for as long as its tasks took here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.accelerators import Catalog, load_catalog, plan
from gpu_pipelines.accelerators.cost import LEFT_OUT, RegionPrice, estimate_cost, price_in
from gpu_pipelines.console.shown import Task
from gpu_pipelines.dag.placement import EVALUATES, PREDICTS, RUNS_SCRIPT, TRAINS, TUNES
from gpu_pipelines.errors import UserError

#: The steps of this project that run on the accelerator.
_ON_THE_ACCELERATOR = (TRAINS, RUNS_SCRIPT, TUNES, EVALUATES, PREDICTS)
#: What a run on this machine is priced with where nobody chooses.
DEFAULT = "l4:1"
_POOLS = "worker_pool_specs"


@dataclass(frozen=True)
class Line:
    """A task in the table of costs: its machines, USD per hour, and how long it took here, seconds."""

    task: str
    machine: str
    per_hour: float
    seconds: float

    @property
    def usd(self) -> float:
        """What it would have cost."""
        return self.per_hour * self.seconds / 3600


@dataclass(frozen=True)
class Cost:
    """What a run would have cost.

    Attributes:
        lines: the tasks that have a price.
        region: whose prices these are.
        note: of which day the prices are.
        left_out: what is not in them.
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
    """What the tasks of a run on this machine would have cost with an accelerator.

    Args:
        accelerator: such as l4:1.
        tasks: of the run.

    Returns:
        The cost; None where no task takes the accelerator, or no price is known.

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
    """What the custom jobs of a compiled pipeline would have cost, on the machines that the file names.

    Args:
        spec: the pipeline.
        tasks: of the run.
        region: whose prices are taken.

    Returns:
        The cost; None where no task names machines with a known price.
    """
    catalog, pools = load_catalog(), dict(_pools(spec))
    lines, sources = [], set()
    for task in tasks:
        prices = [_priced(pool, region, catalog) for pool in pools.get(task.name.partition("-#")[0], ())]
        known = [(machine, price) for machine, price in prices if price is not None and price.on_demand is not None]
        if not known or len(known) < len(prices) or not task.seconds:
            continue
        per_hour = sum(price.on_demand or 0 for _, price in known)
        sources |= {source for _, price in known for source in price.sources}
        lines.append(Line(task.label, ", ".join(machine for machine, _ in known), per_hour, task.seconds))
    return Cost(lines, region, f"list prices of {catalog.as_of(sources) or 'unknown date'}") if lines else None


def _pools(spec: Mapping[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The worker pools of each task that names some."""
    for part in (spec.get("root", {}), *spec.get("components", {}).values()):
        for name, task in part.get("dag", {}).get("tasks", {}).items():
            value = task.get("inputs", {}).get("parameters", {}).get(_POOLS, {}).get("runtimeValue", {})
            if isinstance(pools := value.get("constant"), list):
                yield name, [pool for pool in pools if isinstance(pool, dict) and pool.get("machine_spec")]


def _priced(pool: Mapping[str, Any], region: str, catalog: Catalog) -> tuple[str, RegionPrice | None]:
    machine_spec, nodes = pool["machine_spec"], int(pool.get("replica_count", 1))
    machine = catalog.machine_types.get(machine_spec.get("machine_type", ""))
    gpu = next((gpu for gpu in catalog.gpus.values() if gpu.enum == machine_spec.get("accelerator_type")), None)
    if machine is None:
        return "", None
    count = int(machine_spec.get("accelerator_count", 0))
    told = (f"{nodes} × " if nodes > 1 else "") + machine.name + (f" with {gpu.name}:{count}" if gpu else "")
    return told, price_in(catalog, gpu, count, machine, region, nodes)

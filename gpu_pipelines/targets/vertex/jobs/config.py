"""A job as the file for `gcloud ai custom-jobs create --config`, with its command and its cost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.catalog import Catalog, load_catalog
from gpu_pipelines.accelerators.cost import RegionPrice, price_in
from gpu_pipelines.accelerators.together import share_zone
from gpu_pipelines.submit_commands import Submission, leaves_a_pool_out
from gpu_pipelines.targets.plan_lines import told_cost, told_plan
from gpu_pipelines.targets.vertex.jobs.request import PreparedJob
from gpu_pipelines.yaml_output import comment, yaml_text

#: Most regions that a comment names.
_REGIONS_SHOWN = 6


def config_document(prepared: PreparedJob) -> dict[str, Any]:
    """The `CustomJobSpec` with the field names of gcloud and REST."""
    document: dict[str, Any] = _camel_case(prepared.spec)
    return document


def job_document(prepared: PreparedJob) -> dict[str, Any]:
    """The whole `CustomJob` as in the REST API."""
    document: dict[str, Any] = _camel_case({name: part for name, part in prepared.job.items() if name != "labels"})
    # Keys of labels are the user's own.
    return {**document, "labels": prepared.labels} if prepared.labels else document


def config_text(prepared: PreparedJob, file: str) -> str:
    """The file, with its purpose and its cost as comments.

    Args:
        prepared: the job.
        file: name of the file, for the command.
    """
    comments = [
        *told_machines(prepared),
        submit_command(prepared, file),
    ]
    if prepared.region is None and prepared.plans:
        comments.append(_told_regions(prepared.plans[0]))
    return "".join(comment(line) for line in comments) + yaml_text(config_document(prepared))


def submit_command(prepared: PreparedJob, file: str) -> str:
    """The command that submits the file: gcloud's, or this project's own if gcloud would refuse it."""
    submission = Submission(prepared.name, prepared.project, prepared.region, prepared.labels, prepared.encryption_key)
    if leaves_a_pool_out(prepared.spec["worker_pool_specs"]):
        return submission.own_command(file)
    return submission.gcloud_command(file)


def told_machines(prepared: PreparedJob) -> list[str]:
    """Lines with the machines and the cost of the pools with GPUs, and the cost of all pools together."""
    lines = [line for plan in prepared.plans for line in (told_plan(plan), told_cost(plan))]
    together = cost_of_all_pools(prepared)
    return [*lines, *([together] if together else [])]


def _told_regions(plan: AcceleratorPlan) -> str:
    if not plan.regions:
        return "REGION: it is not known where it is available"
    more = f" and {len(plan.regions) - _REGIONS_SHOWN} more" if len(plan.regions) > _REGIONS_SHOWN else ""
    return f"REGION: one of {', '.join(plan.regions[:_REGIONS_SHOWN])}{more}"


def _camel_case(value: Any) -> Any:
    """Mappings with JSON's names in place of those of protocol buffers; a `CustomJobSpec` has no free keys."""
    if isinstance(value, dict):
        return {_camel(name): _camel_case(content) for name, content in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_camel_case(content) for content in value]
    return value


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


@dataclass(frozen=True)
class _Sum:
    """All pools in one region: US dollars per hour, and the day of the oldest price list."""

    region: str
    per_hour: float
    as_of: date | None


def cost_of_all_pools(prepared: PreparedJob) -> str:
    """A line with the cost of the machines of all pools together; empty for a job with one kind of machine."""
    pools = [pool for pool in prepared.spec["worker_pool_specs"] if pool]
    if not prepared.plans or len({str(pool.get("machine_spec")) for pool in pools}) < 2:
        return ""
    catalog, first = load_catalog(), prepared.plans[0]
    regions = (prepared.region,) if prepared.region else share_zone(prepared.plans, catalog).regions
    sums = [found for region in regions if (found := _sum(pools, str(region), first.strategy, catalog))]
    if not sums:
        return "all pools together: no price is known in one region"
    cheapest = min(sums, key=lambda found: (found.per_hour, found.region))
    told = f"all pools together: about {cheapest.per_hour:,.2f} USD per hour in {cheapest.region}"
    if prepared.region is None:
        told += ", the cheapest region that has all"
    if first.hours is not None:
        told += f", {cheapest.per_hour * first.hours:,.2f} USD for {first.hours:g} h"
    return f"{told} (list prices of {cheapest.as_of or 'unknown date'}; without fees, disks and traffic)"


def _sum(pools: list[dict[str, Any]], region: str, strategy: str, catalog: Catalog) -> _Sum | None:
    """None if the price of one is not known."""
    prices = [_price(pool, region, catalog) for pool in pools]
    total = 0.0
    for price in prices:
        per_hour = None if price is None else price.spot if strategy == "spot" else price.on_demand
        if per_hour is None:
            return None
        total += per_hour
    return _Sum(region, total, catalog.as_of({source for price in prices if price for source in price.sources}))


def _price(pool: Mapping[str, Any], region: str, catalog: Catalog) -> RegionPrice | None:
    spec = pool.get("machine_spec", {})
    machine = catalog.machine_types.get(spec.get("machine_type", ""))
    gpu = next((gpu for gpu in catalog.gpus.values() if gpu.enum == spec.get("accelerator_type")), None)
    if machine is None:
        return None
    return price_in(catalog, gpu, spec.get("accelerator_count", 0), machine, region, pool.get("replica_count", 1))

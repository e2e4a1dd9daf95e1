"""In which zone a VM is made: a plan is for a region, and Compute Engine makes machines in one of its zones."""

from __future__ import annotations

import re

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import how_to_give

_ZONE = re.compile(r"([a-z]+-[a-z]+[0-9]+)-[a-z]")


def region_of(zone: str) -> str:
    """The region of a zone.

    Raises:
        UserError: it is not of the form of a zone.
    """
    match = _ZONE.fullmatch(zone)
    if match is None:
        raise UserError(f"--zone {zone[:60]!r} is not a zone.", "A zone is a region and a letter: us-central1-a.")
    return match[1]


def region_to_plan(zone: str | None, region: str | None, default: str | None) -> str | None:
    """The region to plan for.

    Args:
        zone: the flag.
        region: the flag.
        default: of the project's settings; a zone wins over it.

    Raises:
        UserError: zone and region contradict each other.
    """
    if zone is None:
        return region or default
    of_zone = region_of(zone)
    if region and region != of_zone:
        raise UserError(f"--zone {zone} is in {of_zone}, not in --region {region}.", "Leave one of them out.")
    return of_zone


def zones_to_try(plan: AcceleratorPlan, zone: str | None) -> tuple[str, ...]:
    """The zones in which the VM may be made, in the order to try them; one where it was asked for.

    Raises:
        UserError: the zone does not have the GPU, or none is known.
    """
    if plan.region is None:
        raise UserError(how_to_give("region").removesuffix(".") + ", or give --zone.")
    if zone is None and not plan.zones:
        raise UserError(
            f"Which zones of {plan.region} have {plan.spec.partition(':')[0]} is not known.",
            f"Give --zone; gcloud compute accelerator-types list --filter='zone~{plan.region}' shows them.",
        )
    if zone is None:
        return plan.zones
    if plan.zones and zone not in plan.zones:
        raise UserError(
            f"{zone} does not have {plan.spec.partition(':')[0]}, as far as is known.",
            f"Zones of {plan.region} that do: {', '.join(plan.zones)}.",
        )
    return (zone,)

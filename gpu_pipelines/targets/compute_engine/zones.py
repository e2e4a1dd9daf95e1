"""The zones in which a VM may be created, and the region that they are in."""

from __future__ import annotations

import re

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import how_to_give

_ZONE = re.compile(r"([a-z]+-[a-z]+[0-9]+)-[a-z]")


def region_of(zone: str) -> str:
    """The region of a zone.

    Raises:
        UserError: it does not have the form of a zone.
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
        default: region of the project's settings; a zone wins over it.

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
    """The zones in which the VM may be created, in the order of trying; one if the user chose it.

    Raises:
        UserError: the zone does not have the GPU, the reservation is in another, or no zone is known.
    """
    if plan.region is None:
        raise UserError(how_to_give("region").removesuffix(".") + ", or give --zone.")
    if zone is None and not plan.zones:
        raise UserError(
            f"It is not known which zones of {plan.region} have {plan.spec.partition(':')[0]}.",
            f"Give --zone; gcloud compute accelerator-types list --filter='zone~{plan.region}' shows them.",
        )
    if zone is None:
        return plan.zones
    if plan.reservation is not None and zone not in plan.zones:
        raise UserError(f"The reservation is in {', '.join(plan.zones)}, not in --zone {zone}.", "Leave --zone out.")
    if plan.zones and zone not in plan.zones:
        raise UserError(
            f"{zone} does not have {plan.spec.partition(':')[0]}, as far as is known.",
            f"Zones of {plan.region} that do: {', '.join(plan.zones)}.",
        )
    return (zone,)

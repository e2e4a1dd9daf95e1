"""Checks of the regions in a list of choices before anything is sent: quota and data."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.fallback import Fallback
from gpu_pipelines.accelerators.live.clients import Clients
from gpu_pipelines.accelerators.live.quota import read_quota
from gpu_pipelines.errors import UserError, first_line
from gpu_pipelines.google_cloud.connection import credentials
from gpu_pipelines.google_cloud.locations import is_in
from gpu_pipelines.google_cloud.rest import Rest, UnreachableError, endpoint
from gpu_pipelines.project_settings import ProjectSettings

#: Prices of reading a bucket from another region.
_PRICES = "https://cloud.google.com/storage/pricing#network-buckets"


def with_quota(asked: Fallback, settings: ProjectSettings) -> tuple[Fallback, list[str]]:
    """The choices for which the project has quota, and lines about it.

    Args:
        asked: the choices to try.
        settings: project and region.

    Returns:
        The choices without those for which the quota is known and too small, and lines.

    Raises:
        UserError: the quota is too small for all of them.
    """
    limits: dict[str, dict[str, int]] = {}
    for plan in asked.plans:
        if plan.quota_metric and plan.quota_metric not in limits:
            try:
                report = read_quota(replace(plan, region=None), Clients(settings.project))
            except UserError as error:
                told = f"warning: the quotas could not be read, so they show only when it is tried: {first_line(error)}"
                return asked, [told]
            limits[plan.quota_metric] = {each.region: each.limit for each in report.regions}

    def why_not(plan: AcceleratorPlan) -> str:
        region = plan.region or settings.region or ""
        limit = limits.get(plan.quota_metric or "", {}).get(region, -1)
        if not 0 <= limit < plan.total_gpus:
            return ""
        metric = str(plan.quota_metric).rpartition("/")[2]
        return f"the quota {metric} is {limit} in {region}, and {plan.total_gpus} are needed"

    return asked.without(why_not), []


def told_of_data(plans: Iterable[AcceleratorPlan], settings: ProjectSettings) -> list[str]:
    """Lines about regions that differ from that of the bucket that trainings read from and write to."""
    bucket = re.sub(r"^gs://", "", settings.pipeline_root or "").partition("/")[0]
    regions = list(dict.fromkeys(plan.region or settings.region or "" for plan in plans))
    if not bucket or len(regions) < 2:
        return []
    where = endpoint("storage")
    try:
        answer = Rest(credentials(where)).get("storage", f"/storage/v1/b/{bucket}")
    except (UnreachableError, UserError):
        return [f"warning: the location of gs://{bucket} could not be read; in another region reading it costs"]
    location = str(answer.content.get("location", ""))
    far = [region for region in regions if location and is_in(location, region) is False]
    if not answer.ok or not location:
        return [f"warning: where gs://{bucket} is may not be read ({answer.message}); from another region it costs"]
    if not far:
        return []
    return [
        f"warning: gs://{bucket} is in {location.lower()}: a training in {', '.join(far)} reads its data there "
        f"and writes its checkpoints there, more slowly, and paid for by the GiB ({_PRICES})"
    ]

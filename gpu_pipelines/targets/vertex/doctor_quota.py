"""The doctor's check of the quota for the chosen accelerator."""

from __future__ import annotations

from gpu_pipelines.accelerators.live.clients import Clients
from gpu_pipelines.accelerators.live.quota import read_quota
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.vertex.doctor_access import AccessCheck
from gpu_pipelines.targets.vertex.doctor_checks import MISSING, NOT_KNOWN, OK, Check

_SUBJECT = "quota"
_REGIONS_SHOWN = 3


def look_at_quota(access: AccessCheck) -> list[Check]:
    """Whether the project may use as many GPUs as the plan has, in its region or in any."""
    if access.plan is None:
        return [Check(_SUBJECT, NOT_KNOWN, "not looked at: there is no accelerator")]
    try:
        report = read_quota(access.plan, Clients(access.settings.project))
    except UserError as error:
        return [Check(_SUBJECT, NOT_KNOWN, error.problem, error.remedy)]
    metric = report.metric.rpartition("/")[2]
    listed = ", ".join(
        f"{region.region} {'no limit' if region.limit < 0 else region.limit}"
        for region in report.regions[:_REGIONS_SHOWN]
    )
    told = f"{metric}: {report.needed} needed; {listed or 'no region'}"
    return [Check(_SUBJECT, OK if report.enough else MISSING, told, report.command)]

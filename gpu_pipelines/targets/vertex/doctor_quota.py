"""The doctor's check of the quota for the chosen accelerator."""

from __future__ import annotations

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.live.clients import Clients
from gpu_pipelines.accelerators.live.quota import read_quota
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.vertex.doctor_access import AccessCheck
from gpu_pipelines.targets.vertex.doctor_checks import MISSING, NOT_KNOWN, OK, Check

_SUBJECT = "quota"
_REGIONS_SHOWN = 3


def look_at_quota(access: AccessCheck) -> list[Check]:
    """Whether the project may use as many GPUs as the plan has, in its region or in any; the same for the evaluation.

    The evaluation has a quota of its own where it runs on another GPU than the training.
    """
    if access.plan is None:
        return [Check(_SUBJECT, NOT_KNOWN, "not looked at: there is no accelerator")]
    found, evaluation = [_look(_SUBJECT, access.plan, access)], access.evaluation
    if evaluation is not None and evaluation.quota_metric != access.plan.quota_metric:
        found.append(_look("quota of evaluation", evaluation, access))
    return found


def _look(subject: str, plan: AcceleratorPlan, access: AccessCheck) -> Check:
    try:
        report = read_quota(plan, Clients(access.settings.project))
    except UserError as error:
        return Check(subject, NOT_KNOWN, error.problem, error.remedy)
    metric = report.metric.rpartition("/")[2]
    listed = ", ".join(
        f"{region.region} {'no limit' if region.limit < 0 else region.limit}"
        for region in report.regions[:_REGIONS_SHOWN]
    )
    told = f"{metric}: {report.needed} needed; {listed or 'no region'}"
    return Check(subject, OK if report.enough else MISSING, told, report.command)

"""Checks all that a training on Vertex AI needs, and says what to run for each thing that is missing.

Checks without the network come first. Each of the others calls its service once and gives up soon; if a service does
not answer, or access is denied, the check says that it could not be made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from gpu_pipelines.accelerators import AcceleratorPlan
from gpu_pipelines.accelerators.live.clients import Clients
from gpu_pipelines.accelerators.live.quota import read_quota
from gpu_pipelines.accelerators.one_gpu import named_evaluation_plan
from gpu_pipelines.accelerators.plan import PlanError, plan_request
from gpu_pipelines.accelerators.request import PlanRequest, require_gpu
from gpu_pipelines.errors import UserError
from gpu_pipelines.google_cloud.rest import Rest, UnreachableError
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.vertex.doctor.access import (
    AccessCheck,
    find_credentials,
    look_at_apis,
    look_at_permissions,
    look_at_project,
    look_at_service_account,
)
from gpu_pipelines.targets.vertex.doctor.checks import MISSING, NOT_KNOWN, OK, Check
from gpu_pipelines.targets.vertex.doctor.local import look_at_gcloud, look_at_settings, look_at_versions
from gpu_pipelines.targets.vertex.doctor.places import look_at_bucket, look_at_image, look_at_repository
from gpu_pipelines.targets.vertex.target import evaluation_for
from gpu_pipelines.tasks.model_sizes import LARGEST_BUILT_IN

_QUOTA = "quota"
#: Most regions to name in the check of the quota.
_REGIONS_SHOWN = 3


def _look_at_quota(access: AccessCheck) -> list[Check]:
    """Whether the project may use as many GPUs as the plan has, in its region or in any; the same for the evaluation.

    The evaluation has a quota of its own if it runs on another GPU than the training.
    """
    if access.plan is None:
        return [Check(_QUOTA, NOT_KNOWN, "not looked at: there is no accelerator")]
    found, evaluation = [_quota_of(_QUOTA, access.plan, access)], access.evaluation
    if evaluation is not None and evaluation.quota_metric != access.plan.quota_metric:
        found.append(_quota_of("quota of evaluation", evaluation, access))
    return found


def _quota_of(subject: str, plan: AcceleratorPlan, access: AccessCheck) -> Check:
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


#: Checks that call a service, by their subject, in the order in which they are shown.
_REMOTE: Sequence[tuple[str, Callable[[AccessCheck], list[Check]]]] = (
    ("APIs", look_at_apis),
    ("your permissions", look_at_permissions),
    ("service account", look_at_service_account),
    ("pipeline root", look_at_bucket),
    ("image", look_at_image),
    ("pipeline repository", look_at_repository),
    (_QUOTA, _look_at_quota),
)


def examine(
    settings: ProjectSettings, request: PlanRequest | None, evaluation: str | None = None, *, offline: bool
) -> Iterator[Check]:
    """Makes the checks.

    Args:
        settings: of the project.
        request: the accelerator to use; None if there is none yet.
        evaluation: the accelerator of the evaluation, `NAME:COUNT`; None for the default.
        offline: call no service.

    Yields:
        The checks, each after those that it depends on.
    """
    yield look_at_versions()
    yield look_at_gcloud()
    yield from look_at_settings(settings)
    plan, check = _planned(request)
    yield check
    evaluated_on = _evaluation(settings, plan, evaluation)
    credentials = find_credentials(offline=offline)
    yield credentials.check
    if settings.project is None:
        yield from _not_made(settings, "there is no project to ask about")
        return
    if offline:
        yield from _not_made(settings, "--offline")
        return
    if credentials.check.state == MISSING:
        yield from _not_made(settings, "there are no credentials")
        return
    yield from _remote(AccessCheck(settings, plan, Rest(credentials.found), credentials.member, evaluated_on))


def _remote(access: AccessCheck) -> Iterator[Check]:
    try:
        check, number = look_at_project(access)
    except UnreachableError as error:
        # The others would time out as well; one is enough to know.
        yield Check("project exists", NOT_KNOWN, f"{access.settings.project}: {error}")
        yield from _not_made(access.settings, "no network", begin=1)
        return
    yield check
    access = replace(access, number=number)
    with ThreadPoolExecutor(len(_REMOTE)) as threads:
        for found in [threads.submit(_made, subject, look, access) for subject, look in _REMOTE]:
            yield from found.result()


def _made(subject: str, look: Callable[[AccessCheck], list[Check]], access: AccessCheck) -> list[Check]:
    try:
        return look(access)
    except UnreachableError as error:
        return [Check(subject, NOT_KNOWN, str(error))]


def _not_made(settings: ProjectSettings, why: str, begin: int = 0) -> Iterator[Check]:
    # Missing settings were already reported.
    by_name = {"pipeline_root": "pipeline root", "image": "image"}
    not_set = {subject for name, subject in by_name.items() if getattr(settings, name) is None}
    for subject in ["project exists", *(subject for subject, _ in _REMOTE)][begin:]:
        if subject not in not_set:
            yield Check(subject, NOT_KNOWN, f"not looked at: {why}")


def _evaluation(settings: ProjectSettings, plan: AcceleratorPlan | None, spec: str | None) -> AcceleratorPlan | None:
    if plan is None:
        return None
    return named_evaluation_plan(spec, plan) if spec else evaluation_for(plan, settings, LARGEST_BUILT_IN)


def _planned(request: PlanRequest | None) -> tuple[AcceleratorPlan | None, Check]:
    if request is None:
        return None, Check("accelerator", NOT_KNOWN, "none was named", "Give --accelerator NAME:COUNT, such as l4:1.")
    try:
        require_gpu(request.spec, "Vertex AI")
        plan = plan_request(request)
    except PlanError as error:
        problems: list[Any] = [problem.message for problem in error.problems]
        instead = [choice.command() for problem in error.problems for choice in problem.alternatives]
        command = f"gpu-pipelines accelerators plan {instead[0]}" if instead else "gpu-pipelines accelerators list"
        return None, Check("accelerator", MISSING, " ".join(problems), command)
    except UserError as error:
        return None, Check("accelerator", MISSING, error.problem, error.remedy)
    where = f"in {plan.region}" if plan.region else f"in {len(plan.regions)} regions"
    return plan, Check("accelerator", OK, f"{plan.total_gpus} × {plan.spec.partition(':')[0]} {where}")

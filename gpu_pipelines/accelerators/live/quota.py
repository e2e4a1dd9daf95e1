"""How much of a plan's quota a project has, from the Cloud Quotas API, and what to ask for if it is too little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_pipelines.accelerators.live.clients import Clients, api_errors
from gpu_pipelines.accelerators.plan import AcceleratorPlan
from gpu_pipelines.errors import UserError

SERVICE = "aiplatform.googleapis.com"


@dataclass(frozen=True)
class RegionQuota:
    """The quota in one region.

    Attributes:
        region: name of the region.
        limit: GPUs that the project may use at once; -1 for no limit.
        enough: whether that is enough for the plan, if nothing else runs.
    """

    region: str
    limit: int
    enough: bool


@dataclass(frozen=True)
class QuotaReport:
    """The quota of a plan in a project.

    Attributes:
        project: the project.
        metric: quota metric, e.g. `aiplatform.googleapis.com/custom_model_training_nvidia_h100_gpus`.
        quota_id: its id in the Cloud Quotas API.
        needed: GPUs that the plan needs.
        regions: the regions the plan may run in, those with the most quota first.
        console: page of the console to ask for more.
        command: gcloud command that asks for more; empty if it is enough somewhere.
    """

    project: str
    metric: str
    quota_id: str
    needed: int
    regions: tuple[RegionQuota, ...]
    console: str
    command: str

    @property
    def enough(self) -> bool:
        """Whether any of the regions has enough."""
        return any(region.enough for region in self.regions)

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            **{name: value for name, value in vars(self).items() if name != "regions"},
            "enough": self.enough,
            "regions": [vars(region).copy() for region in self.regions],
        }


def check_quota(plan: AcceleratorPlan, project: str | None = None) -> QuotaReport:
    """Checks whether a project has the Vertex AI quota for a plan, as `gpu-pipelines accelerators quota`.

    Args:
        plan: a plan with GPUs, as `gpu_pipelines.plan` makes it.
        project: id of the Google Cloud project; None takes that of the environment or of the credentials.

    Returns:
        The needed quota and that of each region; `enough` says whether one of them has as much.

    Raises:
        UserError: the plan is of this machine, there are no credentials, or the API cannot be read.
    """
    return read_quota(plan, Clients(project))


def read_quota(plan: AcceleratorPlan, clients: Clients) -> QuotaReport:
    """Reads the quota that a plan draws on.

    Args:
        plan: a plan with GPUs.
        clients: clients of the project's APIs.

    Raises:
        UserError: if the plan is for this machine only, the API cannot be read, or it does not know the metric.
    """
    metric = plan.quota_metric
    if metric is None:
        raise UserError(f"{plan.spec} runs on this machine and needs no quota.")
    parent = f"projects/{clients.project}/locations/global/services/{SERVICE}"
    with api_errors(f"The quotas of {clients.project}", "the role Cloud Quotas Viewer and the API cloudquotas"):
        told = list(clients.quotas().list_quota_infos(parent=parent))
    found = [info for info in told if info.metric == metric]
    console = f"https://console.cloud.google.com/iam-admin/quotas?project={clients.project}"
    if not found:
        raise UserError(
            f"The project {clients.project} has no quota metric {metric}.",
            f"It may have another name by now; {console} lists those of the project."
            if told
            else f"Enable the Vertex AI API: gcloud services enable {SERVICE} --project={clients.project}",
        )
    (info, *_) = found
    limits = _limits(info)
    wanted = [plan.region] if plan.region else list(plan.regions)
    regions = [_region(name, limits.get(name, limits.get("", 0)), plan.total_gpus) for name in wanted]
    regions.sort(key=lambda each: (-(each.limit if each.limit >= 0 else float("inf")), each.region))
    return QuotaReport(
        project=clients.project,
        metric=metric,
        quota_id=info.quota_id,
        needed=plan.total_gpus,
        regions=tuple(regions),
        console=console,
        command="" if any(each.enough for each in regions) else _command(clients.project, info, plan, regions),
    )


def _region(name: str, limit: int, needed: int) -> RegionQuota:
    return RegionQuota(name, limit, limit < 0 or limit >= needed)


def _limits(info: Any) -> dict[str, int]:
    """The limit of each region; the empty name has that of all regions which are not named."""
    limits: dict[str, int] = {}
    for dimension in info.dimensions_infos:
        value = int(dimension.details.value)
        named = dimension.dimensions.get("region")
        if named:
            limits[named] = value
            continue
        limits[""] = value
        for location in dimension.applicable_locations:
            limits.setdefault(location, value)
    return limits


def _command(project: str, info: Any, plan: AcceleratorPlan, regions: list[RegionQuota]) -> str:
    region = plan.region or (regions[0].region if regions else "REGION")
    return (
        f"gcloud beta quotas preferences create --service={SERVICE} --quota-id={info.quota_id} "
        f"--preferred-value={plan.total_gpus} --dimensions=region={region} --project={project}"
    )

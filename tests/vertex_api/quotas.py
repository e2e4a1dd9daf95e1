"""Cloud Quotas: how many GPUs of each kind a project may use at once."""

from __future__ import annotations

from typing import Any

from google.cloud import cloudquotas_v1

from gpu_pipelines.accelerators.catalog import load_catalog
from vertex_api.transcoding import as_json, parsed

#: What a project has of every GPU until a test says otherwise.
LIMIT = 16
_PAGE_SIZE = 10


class Quotas:
    """The quotas of Vertex AI training.

    Attributes:
        limits: by metric, the limit of each region; under the empty name that of all regions which are not named.
    """

    def __init__(self) -> None:
        gpus = load_catalog().gpus.values()
        self.limits = {metric: {"": LIMIT} for gpu in gpus for metric in (gpu.training_metric, gpu.spot_metric)}

    def answer(self, parent: str, query: dict[str, str]) -> dict[str, Any]:
        """The answer to quotaInfos.list."""
        request = parsed(cloudquotas_v1.ListQuotaInfosRequest, {**query, "parent": parent})
        infos = [_info(parent, metric, limits) for metric, limits in sorted(self.limits.items()) if metric]
        start = int(request.page_token or 0)
        end = start + min(request.page_size or _PAGE_SIZE, _PAGE_SIZE)
        token = str(end) if end < len(infos) else ""
        return as_json(cloudquotas_v1.ListQuotaInfosResponse(quota_infos=infos[start:end], next_page_token=token))


def _info(parent: str, metric: str, limits: dict[str, int]) -> Any:
    name = "".join(word.capitalize() for word in metric.rpartition("/")[2].split("_"))
    dimensions = [
        cloudquotas_v1.DimensionsInfo(
            dimensions={"region": region} if region else {},
            details=cloudquotas_v1.QuotaDetails(value=value),
            applicable_locations=[region] if region else [],
        )
        for region, value in limits.items()
    ]
    return cloudquotas_v1.QuotaInfo(
        name=f"{parent}/quotaInfos/{name}",
        quota_id=f"{name}PerProjectPerRegion",
        metric=metric,
        service="aiplatform.googleapis.com",
        dimensions_infos=dimensions,
    )

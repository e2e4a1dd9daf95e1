"""The project around Vertex AI: its APIs, its permissions, its service accounts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from google.cloud import cloudquotas_v1

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.names import Names
from gpu_pipelines.emulator.transcoding import as_json

SERVICES = (
    "aiplatform.googleapis.com",
    "artifactregistry.googleapis.com",
    "bigquery.googleapis.com",
    "bigquerystorage.googleapis.com",
    "cloudquotas.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "compute.googleapis.com",
    "iam.googleapis.com",
    "logging.googleapis.com",
    "secretmanager.googleapis.com",
    "storage.googleapis.com",
)


class Project:
    """The project's properties.

    Attributes:
        services: names of the enabled APIs.
        denied: permissions that the caller lacks; it has all others.
        service_accounts: e-mail addresses of the existing accounts.
        disabled_accounts: those of them that are disabled.
        bindings: members by role, of the project's IAM policy.
        limits: GPUs by quota metric and region.
    """

    def __init__(self, names: Names) -> None:
        self.services = set(SERVICES)
        self.denied: set[str] = set()
        self.service_accounts: set[str] = set()
        self.disabled_accounts: set[str] = set()
        self.bindings: dict[str, set[str]] = {}
        self.limits: dict[str, dict[str, int]] = {}
        self._names = names

    def told(self, project: str, version: str) -> dict[str, Any]:
        """The answer to projects.get of Cloud Resource Manager, v1 or v3."""
        number = self._names.number(f"projects/{project}")
        name = self._names.project(number)
        if version == "v1":
            return {
                "projectNumber": number.split("/")[1],
                "projectId": name,
                "lifecycleState": "ACTIVE",
                "name": name,
            }
        return {"name": number, "projectId": name, "state": "ACTIVE", "displayName": name}

    def policy(self) -> dict[str, Any]:
        """The answer to projects.getIamPolicy."""
        return policy_of(self.bindings)

    def permissions(self, asked: Any) -> dict[str, Any]:
        """The answer to testIamPermissions: the permissions that the caller has."""
        if not isinstance(asked, list) or not all(isinstance(permission, str) for permission in asked):
            raise ApiError(400, 'Invalid value at "permissions".')
        held = [permission for permission in asked if permission not in self.denied]
        return {"permissions": held} if held else {}

    def service(self, project: str, name: str) -> dict[str, Any]:
        """An API in the form of Service Usage."""
        parent = self._names.number(f"projects/{project}")
        state = "ENABLED" if name in self.services else "DISABLED"
        return {"name": f"{parent}/services/{name}", "config": {"name": name}, "state": state, "parent": parent}

    def list_services(self, project: str, wanted: str) -> dict[str, Any]:
        """The answer to services.list."""
        if wanted not in ("", "state:ENABLED", "state:DISABLED"):
            raise ApiError(400, f"Invalid filter: {wanted}.")
        names = sorted(self.services | set(SERVICES))
        told = [self.service(project, name) for name in names]
        return {"services": [one for one in told if wanted in ("", f"state:{one['state']}")]}

    def batch_services(self, project: str, names: Iterable[str]) -> dict[str, Any]:
        """The answer to services.batchGet."""
        return {"services": [self.service(project, re.sub(r".*/services/", "", name)) for name in names]}

    def service_account(self, project: str, address: str) -> dict[str, Any]:
        """The answer to serviceAccounts.get."""
        if address not in self.service_accounts:
            raise ApiError(404, f"Unknown service account: {address}.")
        name = project if project != "-" else address.partition("@")[2].partition(".")[0]
        disabled = {"disabled": True} if address in self.disabled_accounts else {}
        return {
            "name": f"projects/{name}/serviceAccounts/{address}",
            "projectId": name,
            "email": address,
            "uniqueId": "100000000000000000001",
            **disabled,
        }

    def quotas(self) -> dict[str, Any]:
        """The answer to quotaInfos.list of Cloud Quotas."""
        infos = [
            cloudquotas_v1.QuotaInfo(
                metric=metric,
                quota_id=metric.rpartition("/")[2],
                dimensions_infos=[
                    cloudquotas_v1.DimensionsInfo(
                        dimensions={"region": region}, details=cloudquotas_v1.QuotaDetails(value=limit)
                    )
                    for region, limit in limits.items()
                ],
            )
            for metric, limits in self.limits.items()
        ]
        return as_json(cloudquotas_v1.ListQuotaInfosResponse(quota_infos=infos))


def policy_of(bindings: Mapping[str, set[str]]) -> dict[str, Any]:
    """A policy in IAM's form, from members by role."""
    listed = [{"role": role, "members": sorted(members)} for role, members in sorted(bindings.items())]
    return {"version": 1, "bindings": listed, "etag": "BwXhqDVJ5uU="}

"""Secret Manager, as far as steps use it: they read versions of secrets that a test has added."""

from __future__ import annotations

import base64
from typing import Any

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.names import Names


class Secrets:
    """The secrets of all projects.

    Attributes:
        values: by project and name of the secret, its versions from the first on.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self.values: dict[tuple[str, str], list[str]] = {}

    def put(self, project: str, secret: str, value: str) -> str:
        """Adds a version of a secret; returns its name."""
        self.values.setdefault((project, secret), []).append(value)
        return f"projects/{project}/secrets/{secret}/versions/latest"

    def access(self, project: str, secret: str, version: str) -> dict[str, Any]:
        """projects.secrets.versions.access:
        https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets.versions/access
        """
        number = self._names.number(f"projects/{project}")
        versions = self.values.get((self._names.project(number), secret), [])
        place = len(versions) if version == "latest" else int(version) if version.isdigit() else 0
        if not 1 <= place <= len(versions):
            raise ApiError(404, f"Secret [{number}/secrets/{secret}] not found or has no versions.")
        data = base64.b64encode(versions[place - 1].encode()).decode()
        return {"name": f"{number}/secrets/{secret}/versions/{place}", "payload": {"data": data}}

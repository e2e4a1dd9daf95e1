"""Clients of Google's APIs, and what to tell a user who has no library, no credentials, no project or no permission."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from gpu_pipelines.errors import UserError, first_line
from gpu_pipelines.network_errors import no_credentials
from gpu_pipelines.project_settings import VARIABLES

#: gcloud's own variable that replaces the endpoint of an API.
ENDPOINT_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_{}"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class Clients:
    """Makes clients on demand, over REST.

    Args:
        project: project to ask for and to bill the requests to; None takes that of the environment or the credentials.

    Raises:
        UserError: if a library, the credentials or the project is missing, or the project is a path.
    """

    def __init__(self, project: str | None = None) -> None:
        _import("google.auth")
        self._credentials: Any = None
        named = project or next((os.environ[name] for name in VARIABLES["project"] if os.environ.get(name)), None)
        found = named or self._default()[1]
        if not found:
            raise UserError(
                "No project is set.", "Give --project, or run gcloud config set project and use its credentials."
            )
        if "/" in found:
            raise UserError(f"{found[:80]!r} is not the id of a project.", "Give the id alone, such as my-project-123.")
        self.project: str = found

    def quotas(self) -> Any:
        """A `CloudQuotasClient`."""
        return self._client(
            "google.cloud.cloudquotas_v1.services.cloud_quotas", "CloudQuotas", "CLOUDQUOTAS", "cloudquotas"
        )

    def prices(self) -> Any:
        """A `CloudCatalogClient`, of the price list."""
        return self._client(
            "google.cloud.billing_v1.services.cloud_catalog", "CloudCatalog", "CLOUDBILLING", "cloudbilling"
        )

    def accelerator_types(self) -> Any:
        """An `AcceleratorTypesClient`."""
        return self._client(
            "google.cloud.compute_v1.services.accelerator_types", "AcceleratorTypes", "COMPUTE", "compute"
        )

    def machine_types(self) -> Any:
        """A `MachineTypesClient`."""
        return self._client("google.cloud.compute_v1.services.machine_types", "MachineTypes", "COMPUTE", "compute")

    def _client(self, module: str, service: str, variable: str, host: str) -> Any:
        client = getattr(_import(module), f"{service}Client")
        transport = getattr(_import(f"{module}.transports.rest"), f"{service}RestTransport")
        override = urlsplit(os.environ.get(ENDPOINT_VARIABLE.format(variable), ""))
        if override.scheme == "http":
            # An unencrypted endpoint is a test's; credentials are never sent there.
            anonymous = _import("google.auth.credentials").AnonymousCredentials()
            return client(transport=transport(host=override.netloc, credentials=anonymous, url_scheme="http"))
        where = override.netloc or f"{host}.googleapis.com"
        return client(transport=transport(host=where, credentials=self._default()[0]))

    def _default(self) -> tuple[Any, str | None]:
        if self._credentials is None:
            auth, errors = _import("google.auth"), _import("google.auth.exceptions")
            try:
                self._credentials = auth.default(scopes=[_SCOPE])
            except errors.GoogleAuthError as error:
                raise no_credentials(error) from error
        found: tuple[Any, str | None] = self._credentials
        return found


@contextmanager
def api_errors(what: str, permission: str) -> Iterator[None]:
    """Turns an error of an API into a message.

    Args:
        what: what was being read.
        permission: the role or API that it needs.

    Raises:
        UserError: in place of every error of the API or of the network.
    """
    api: Any = _import("google.api_core.exceptions")
    auth: Any = _import("google.auth.exceptions")
    requests: Any = _import("requests")
    try:
        yield
    except (api.Forbidden, api.Unauthorized) as error:
        raise UserError(f"{what} may not be read: {first_line(error)}", f"It needs {permission}.") from error
    except (api.GoogleAPIError, auth.GoogleAuthError, requests.RequestException) as error:
        raise UserError(f"{what} could not be read: {first_line(error)}") from error


def _import(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(
            f"This needs Google's client libraries ({error.name or module} is missing).",
            "Run pip install 'gpu-pipelines[live]'.",
        ) from error

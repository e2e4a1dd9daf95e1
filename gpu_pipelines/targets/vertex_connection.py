"""Google's client libraries, set up for a project; and what an error of the service means to the user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings

#: gcloud's own variable that puts another endpoint in the place of Vertex AI's.
ENDPOINT_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def connect(settings: ProjectSettings) -> ModuleType:
    """`google.cloud.aiplatform`, set up for a project and region.

    Raises:
        UserError: project or region is not known, or there are no credentials.
    """
    settings.require("project", "region")
    from google.cloud import aiplatform

    endpoint = os.environ.get(ENDPOINT_VARIABLE, "").rstrip("/")
    if endpoint:
        aiplatform.init(api_endpoint=endpoint)
    aiplatform.init(
        project=settings.project,
        location=settings.region,
        staging_bucket=settings.pipeline_root,
        service_account=settings.service_account,
        network=settings.network,
        encryption_spec_key_name=settings.encryption_key,
        credentials=credentials(endpoint),
        api_transport="rest",
    )
    return aiplatform


def credentials(endpoint: str) -> Any:
    """Application-default credentials; none for an unencrypted endpoint, which is a test's.

    Raises:
        UserError: there are none.
    """
    import google.auth
    import google.auth.credentials
    import google.auth.exceptions

    if urlsplit(endpoint).scheme == "http":
        return google.auth.credentials.AnonymousCredentials()
    try:
        found, _ = google.auth.default(scopes=[_SCOPE])
    except google.auth.exceptions.GoogleAuthError as error:
        raise UserError(
            f"There are no usable Google Cloud credentials: {str(error).splitlines()[0]}",
            "Run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS.",
        ) from error
    return found


@contextmanager
def service_errors(what: str) -> Iterator[None]:
    """Turns an error of a service into its message and what to do about it.

    Args:
        what: what was being done, as in "Submitting the pipeline".

    Raises:
        UserError: in place of every error of a service or of the network.
    """
    import google.api_core.exceptions as api
    import google.auth.exceptions as auth
    import requests

    try:
        yield
    except auth.RefreshError as error:
        raise UserError(
            f"{what} failed: the credentials are not valid any more.", "Run gcloud auth application-default login."
        ) from error
    except (api.GoogleAPIError, auth.GoogleAuthError, requests.RequestException) as error:
        raise UserError(f"{what} failed: {_message(error)}", _remedy(error)) from error


def _message(error: Exception) -> str:
    text = str(getattr(error, "message", "") or error)
    return " ".join(text.split())[:600] or type(error).__name__


def _remedy(error: Exception) -> str:
    import google.api_core.exceptions as api

    text = str(error)
    if isinstance(error, api.TooManyRequests) or "quota" in text.lower():
        return (
            "Ask for more of the quota it names, in the region, on the console's page IAM & Admin > Quotas; or take "
            "another region or accelerator: gpu-pipelines accelerators plan."
        )
    if isinstance(error, (api.Forbidden, api.Unauthorized)):
        return "gpu-pipelines doctor names the role or API that is missing."
    if isinstance(error, api.NotFound):
        return "Look at its name, the project and the region."
    if isinstance(error, (api.ServerError, api.RetryError)) or not isinstance(error, api.GoogleAPIError):
        return "Nothing is known of what the service has done: look at the console before you try again."
    return ""

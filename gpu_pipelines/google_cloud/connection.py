"""Google's client libraries, set up for a project, and what an error of the service means to the user."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from gpu_pipelines.errors import AccessDeniedError, QuotaExceededError, UnavailableError, UserError
from gpu_pipelines.network_errors import (
    LOGIN_REMEDY,
    TRUST_REMEDY,
    error_of_status,
    no_credentials,
    no_token_was_given,
    untrusted_certificate,
)
from gpu_pipelines.project_settings import ProjectSettings

#: gcloud's own variables that replace the endpoint of a service.
ENDPOINT_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_AIPLATFORM"
LOGGING_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_LOGGING"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
#: The longest that one request may take, seconds; the clients' own default is unlimited.
REQUEST_SECONDS = 60.0
#: First and longest wait between tries, seconds, and the time after which a request is given up.
_FIRST_WAIT, _LONGEST_WAIT, _GIVE_UP = 1.0, 16.0, 90.0


def location_of(settings: ProjectSettings) -> str:
    """The parent of a project's resources in a region."""
    return f"projects/{settings.project}/locations/{settings.region}"


def with_label(list_resources: Callable[..., Iterable[Any]], settings: ProjectSettings, key: str, value: str) -> Any:
    """The resources with a label, by the method of a client that lists them."""
    request = {"parent": location_of(settings), "filter": f'labels.{key}="{value}"'}
    return list_resources(request=request, timeout=REQUEST_SECONDS, retry=tried_again())


def endpoint_of(settings: ProjectSettings) -> str:
    """The endpoint of Vertex AI, with scheme."""
    override = os.environ.get(ENDPOINT_VARIABLE, "").rstrip("/")
    return override or f"https://{settings.region}-aiplatform.googleapis.com"


def _client(module: str, service: str, settings: ProjectSettings) -> Any:
    """A client of a service of Vertex AI over REST.

    The clients of single services import in half the time of `google.cloud.aiplatform`, and their requests can be
    retried, unlike those of its classes.

    Raises:
        UserError: project or region is not known, or there are no credentials.
    """
    settings.require("project", "region")
    endpoint = endpoint_of(settings)
    found = credentials(endpoint)
    package = f"google.cloud.aiplatform_v1.services.{module}"
    transport = getattr(import_module(f"{package}.transports.rest"), f"{service}RestTransport")
    client = getattr(import_module(package), f"{service}Client")
    where = urlsplit(endpoint)
    return client(transport=transport(host=where.netloc, credentials=found, url_scheme=where.scheme))


#: Each takes the settings of the project and returns its client.
pipeline_service = partial(_client, "pipeline_service", "PipelineService")
schedule_service = partial(_client, "schedule_service", "ScheduleService")
job_service = partial(_client, "job_service", "JobService")
persistent_resource_service = partial(_client, "persistent_resource_service", "PersistentResourceService")
model_service = partial(_client, "model_service", "ModelService")
endpoint_service = partial(_client, "endpoint_service", "EndpointService")
metadata_service = partial(_client, "metadata_service", "MetadataService")
tensorboard_service = partial(_client, "tensorboard_service", "TensorboardService")
prediction_service = partial(_client, "prediction_service", "PredictionService")


def logging_session() -> tuple[Any, str]:
    """A session that adds credentials to its requests, and the address of Cloud Logging.

    Raises:
        UserError: there are no credentials.
    """
    from google.auth.transport.requests import AuthorizedSession

    endpoint = os.environ.get(LOGGING_VARIABLE, "").rstrip("/") or "https://logging.googleapis.com"
    return AuthorizedSession(credentials(endpoint)), endpoint


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
        raise no_credentials(error) from error
    return found


def tried_again() -> Any:
    """How a request that may be sent twice is repeated: after transient errors, with growing waits."""
    from google.api_core.retry import Retry

    return Retry(
        predicate=may_pass,
        initial=_FIRST_WAIT,
        maximum=_LONGEST_WAIT,
        multiplier=2.0,
        timeout=_GIVE_UP,
        on_error=lambda error: print(f"trying again: {message_of(error)}", file=sys.stderr),
    )


def answer_was_lost(error: Exception) -> bool:
    """Whether after an error it is not known what the service did with the request."""
    import google.api_core.exceptions as api
    import google.auth.exceptions as auth
    import requests

    if untrusted_certificate(error):
        # Nothing is sent over an untrusted connection, and the next try is no more trusted.
        return False
    return isinstance(error, (api.ServerError, api.RetryError, requests.RequestException, auth.TransportError))


def may_pass(error: Exception) -> bool:
    """Whether the same request may succeed at the next try."""
    import google.api_core.exceptions as api

    if isinstance(error, api.TooManyRequests):
        # A limit of requests per minute passes in seconds; a quota of GPUs or jobs does not.
        return "quota metrics exceed quota limits" not in str(error)
    return answer_was_lost(error) or no_token_was_given(error)


@contextmanager
def service_errors(what: str, if_lost: str = "") -> Iterator[None]:
    """Turns an error of a service into its message and a remedy.

    Args:
        what: the action, such as "Submitting the pipeline".
        if_lost: how to find out what happened if the answer was lost.

    Raises:
        UserError: in place of every error of a service or of the network.
    """
    import google.api_core.exceptions as api
    import google.auth.exceptions as auth
    import requests

    try:
        yield
    except auth.RefreshError as error:
        why = " ".join(str(error.args[0] if error.args else error).split())[:200]
        if no_token_was_given(error):
            raise UnavailableError(f"{what} failed: no access token was given: {why}", if_lost) from error
        raise AccessDeniedError(f"{what} failed: the credentials are no longer valid ({why}).", LOGIN_REMEDY) from error
    except requests.HTTPError as error:
        told = api.from_http_response(error.response)
        raise _explained(told, what, if_lost) from error
    except (api.GoogleAPIError, auth.GoogleAuthError, requests.RequestException) as error:
        if reason := untrusted_certificate(error):
            told = f"{what} failed: the service's certificate is not trusted ({reason})."
            raise UserError(told, TRUST_REMEDY) from error
        raise _explained(error, what, if_lost) from error


def _explained(error: Exception, what: str, if_lost: str) -> UserError:
    import google.api_core.exceptions as api
    import google.auth.exceptions as auth

    problem, remedy = f"{what} failed: {message_of(error)}", _remedy(error, if_lost)
    if isinstance(error, api.TooManyRequests) and not may_pass(error):
        return QuotaExceededError(problem, remedy)
    if isinstance(error, auth.GoogleAuthError) and not isinstance(error, auth.TransportError):
        return AccessDeniedError(problem, remedy)
    if answer_was_lost(error):
        return UnavailableError(problem, remedy, int(getattr(error, "code", None) or 0))
    return error_of_status(getattr(error, "code", None), problem, remedy)


def message_of(error: Exception) -> str:
    """The message of an error of a service or of the network, in one line, without the request."""
    cause = getattr(error, "cause", None)
    text = _said(error)
    if cause is not None:
        text = f"{text} {_said(cause)}"
    # The clients put the request before the service's message.
    text = re.sub(r"\b(?:GET|POST|PATCH|DELETE) https?://\S+: ", "", " ".join(text.split()))
    return text[:600] or type(error).__name__


def _said(error: Exception) -> str:
    """The message of an error; for a failed connection its target and the reason, without the request."""
    tried = error.args[0] if error.args else None
    pool, reason = getattr(tried, "pool", None), getattr(tried, "reason", None)
    if pool is None or reason is None:
        return str(getattr(error, "message", "") or error)
    why = re.sub(r"^\w+\(host=[^)]*\): ", "", str(reason.args[-1]))
    return f"No connection to {pool.host}:{pool.port}: {why}"


#: Texts in messages of services, and the remedy for each; the first that fits counts.
_REMEDIES = (
    ("quota project", "Run gcloud auth application-default set-quota-project PROJECT."),
    ("SERVICE_DISABLED", "Run gcloud services enable aiplatform.googleapis.com artifactregistry.googleapis.com."),
    ("has not been used in project", "Enable it: gcloud services enable, with the API's name and --project."),
    ("iam.serviceAccounts.actAs", "Ask for the role Service Account User on the account that jobs run as."),
    (
        "quota",
        "Ask for more of the quota it names, in the region, on the console's page IAM & Admin > Quotas; or take "
        "another region or accelerator: gpu-pipelines accelerators plan.",
    ),
)


def _remedy(error: Exception, if_lost: str) -> str:
    import google.api_core.exceptions as api
    import google.auth.exceptions as auth

    text = str(error).lower()
    for phrase, remedy in _REMEDIES:
        if phrase.lower() in text:
            return remedy
    if isinstance(error, api.TooManyRequests):
        return "Wait a minute, then try again."
    if answer_was_lost(error):
        return if_lost or "Nothing is known of what the service has done: look at the console before you try again."
    if isinstance(error, (api.Unauthorized, auth.GoogleAuthError)):
        return LOGIN_REMEDY
    if isinstance(error, api.Forbidden):
        return "gpu-pipelines doctor names the role or API that is missing."
    if isinstance(error, api.NotFound):
        return "Look at its name, the project and the region."
    return ""

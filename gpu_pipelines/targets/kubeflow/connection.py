"""The client of Kubeflow Pipelines, and what to tell a user who cannot reach it or is refused."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any
from urllib.parse import urlsplit

from gpu_pipelines.errors import UserError
from gpu_pipelines.project_settings import ProjectSettings

#: A token for the address, where it asks for one.
TOKEN = "GPU_PIPELINES_KUBEFLOW_TOKEN"  # noqa: S105 (the name of a variable)
#: What KFP's client takes for a deployment without profiles.
_NO_NAMESPACE = "kubeflow"
_REACHED_SECONDS = 15.0
#: What KFP's gateway in Google Cloud is called; its client finds credentials for it itself.
_GOOGLE_PROXY = ".googleusercontent.com"


def connect(settings: ProjectSettings) -> Any:
    """A `kfp.Client`.

    Args:
        settings: address and namespace.

    Raises:
        UserError: the address is not known, or nobody answers there.
    """
    settings.require("kubeflow_host")
    host = str(settings.kubeflow_host).rstrip("/")
    with warnings.catch_warnings(), service_errors("Connecting to Kubeflow Pipelines"):
        warnings.simplefilter("ignore", FutureWarning)
        import kfp

        token = os.environ.get(TOKEN)
        # The client would ask five times, five seconds apart.
        if not str(urlsplit(host).hostname).endswith(_GOOGLE_PROXY):
            _require_answer(host, token)
        return kfp.Client(host=host, namespace=settings.kubeflow_namespace or _NO_NAMESPACE, existing_token=token)


def _require_answer(host: str, token: str | None) -> None:
    import kfp_server_api

    configuration = kfp_server_api.Configuration(host=host)
    configuration.retries = False
    if token:
        configuration.api_key["authorization"] = token
        configuration.api_key_prefix["authorization"] = "Bearer"
    api = kfp_server_api.HealthzServiceApi(kfp_server_api.ApiClient(configuration))
    api.healthz_service_get_healthz(_request_timeout=_REACHED_SECONDS)


def namespace_of(settings: ProjectSettings) -> str | None:
    """The namespace that requests name; None for a deployment without profiles."""
    return settings.kubeflow_namespace


@contextmanager
def quietly() -> Iterator[None]:
    """Keeps back what KFP's client prints of its own accord, which would spoil what a command prints."""
    with redirect_stdout(StringIO()):
        yield


@contextmanager
def service_errors(what: str, remedy: str = "") -> Iterator[None]:
    """Turns an error of the service or of the network into one line.

    Args:
        what: what was being done.
        remedy: what to do about it.

    Raises:
        UserError: in place of every such error.
    """
    from kfp_server_api import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        if error.status in (401, 403):
            remedy = f"Give a token in {TOKEN}, or use a port-forward: docs/kubeflow.md."
        raise UserError(f"{what} failed: {_said(error)}", remedy) from None
    except (HTTPError, TimeoutError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        text = (str(reason).splitlines() or [type(reason).__name__])[0][:300]
        raise UserError(
            f"{what} failed: {text}", remedy or "Check kubeflow_host; is the port-forward running? docs/kubeflow.md."
        ) from None


def _said(error: Any) -> str:
    """What the service said, without its stack of internal errors."""
    try:
        content = json.loads(error.body or "")
        text = content.get("error_message") or content.get("message") or content.get("error") or ""
    except (ValueError, AttributeError):
        text = ""
    return f"{error.status} {text or error.reason}"[:500]

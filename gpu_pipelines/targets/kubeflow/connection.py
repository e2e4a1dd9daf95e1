"""The client of Kubeflow Pipelines, and messages for a user who cannot reach it or is refused."""

from __future__ import annotations

import html
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from http import HTTPStatus
from io import StringIO
from typing import Any
from urllib.parse import urlsplit

from gpu_pipelines.errors import UnavailableError, UserError
from gpu_pipelines.network_errors import error_of_status
from gpu_pipelines.project_settings import ProjectSettings

#: A token for the address, if it needs one.
TOKEN = "GPU_PIPELINES_KUBEFLOW_TOKEN"  # noqa: S105 (the name of a variable)
#: KFP's client uses this for a deployment without profiles.
_NO_NAMESPACE = "kubeflow"
#: Seconds for making a connection, and for an answer. (KFP's client ignores a single number that is not whole.)
_TIMEOUT = (15, 60)
#: Entries on one page of a list.
_PAGE = 100
#: The host of KFP's gateway in Google Cloud; its client finds credentials for it itself.
_GOOGLE_PROXY = ".googleusercontent.com"
_SIGN_IN = f"Give a token in {TOKEN}, or use a port-forward of svc/ml-pipeline-ui: docs/kubeflow.md."
_NOT_THERE = "Look at its name or id, and at kubeflow_host and kubeflow_namespace."
_WHERE = (
    "kubeflow_host takes the address of Kubeflow Pipelines' API: that of a port-forward of svc/ml-pipeline-ui, or on a "
    f"deployment with a dashboard https://HOST/pipeline. A page to sign in wants a token in {TOKEN}: docs/kubeflow.md."
)
_TITLE = re.compile(r"<title[^>]*>([^<]{1,200})</title>", re.IGNORECASE)


class ForeignAnswerError(Exception):
    """Something answered that is not the API: a page to sign in, a dashboard."""


def connect(settings: ProjectSettings) -> Any:
    """A `kfp.Client`, each of whose requests has a time limit and accepts only answers of the API.

    Args:
        settings: address and namespace.

    Raises:
        UserError: the address is not known, nobody answers there, or something other than the API does.
    """
    settings.require("kubeflow_host")
    host = host_of(settings)
    with warnings.catch_warnings(), service_errors("Connecting to Kubeflow Pipelines"):
        warnings.simplefilter("ignore", FutureWarning)
        import kfp

        token = os.environ.get(TOKEN)
        # The client would try five times, five seconds apart.
        if not str(urlsplit(host).hostname).endswith(_GOOGLE_PROXY):
            _require_answer(host, token)

        class Client(kfp.Client):
            """A client whose first request, in its constructor, has a time limit as well."""

            def get_kfp_healthz(self, sleep_duration: int = 0) -> Any:
                return self._healthz_api.healthz_service_get_healthz(_request_timeout=_TIMEOUT)

        client = Client(host=host, namespace=settings.kubeflow_namespace or _NO_NAMESPACE, existing_token=token)
        _guard(client._run_api.api_client.rest_client)
        return client


def _require_answer(host: str, token: str | None) -> None:
    import kfp_server_api

    configuration = kfp_server_api.Configuration(host=host)
    if token:
        configuration.api_key["authorization"] = token
        configuration.api_key_prefix["authorization"] = "Bearer"
    client = kfp_server_api.ApiClient(configuration)
    _guard(client.rest_client)
    kfp_server_api.HealthzServiceApi(client).healthz_service_get_healthz()


def _guard(rest_client: Any) -> None:
    """Gives all requests of a client a time limit, and lets through no answers but the API's own."""
    import urllib3

    # A redirect leads to a page that is not the API, so none is followed. Only a failed connection is tried again.
    rest_client.pool_manager.connection_pool_kw["retries"] = urllib3.Retry(connect=1, read=0, other=0, redirect=False)
    send = rest_client.request

    def request(method: str, url: str, **options: Any) -> Any:
        options["_request_timeout"] = options.get("_request_timeout") or _TIMEOUT
        answer = send(method, url, **options)
        if options.get("_preload_content", True):
            _require_json(answer, url)
        return answer

    rest_client.request = request


def _require_json(answer: Any, url: str) -> None:
    kind = (answer.urllib3_response.headers.get("Content-Type") or "").partition(";")[0]
    content = answer.data if isinstance(answer.data, str) else bytes(answer.data or b"").decode("utf-8", "replace")
    try:
        if isinstance(json.loads(content or "{}"), dict):
            return
    except ValueError:
        pass
    title = _TITLE.search(content)
    page = f" {html.unescape(title[1]).strip()!r}" if title else ""
    what = f"a web page{page}" if "html" in kind or title else f"{kind or 'something'} that is not JSON"
    raise ForeignAnswerError(f"{what} answered at {url.partition('?')[0]} instead of the API")


def host_of(settings: ProjectSettings) -> str:
    """The address of Kubeflow Pipelines, without a final slash."""
    return str(settings.kubeflow_host).rstrip("/")


def page_of(path: str, settings: ProjectSettings) -> str:
    """A page of the user interface of Kubeflow Pipelines, at the addresses that KFP's client prints itself."""
    return f"{host_of(settings)}/#/{path}"


def all_of(list_page: Callable[..., Any], items: str, **options: Any) -> Iterator[Any]:
    """The entries that a method of the client lists, page by page.

    Args:
        list_page: the method.
        items: name of the entries in its answers.
        options: its further arguments.
    """
    token = ""
    while True:
        page = list_page(page_token=token, page_size=_PAGE, **options)
        yield from getattr(page, items) or []
        token = page.next_page_token or ""
        if not token:
            return


@contextmanager
def quietly() -> Iterator[None]:
    """Suppresses output that KFP's client prints itself, which would spoil the output of a command."""
    with redirect_stdout(StringIO()):
        yield


@contextmanager
def service_errors(what: str, remedy: str = "") -> Iterator[None]:
    """Turns an error of the service or of the network into one line.

    Args:
        what: the action.
        remedy: what to do if the service could not answer, or refused.

    Raises:
        UserError: in place of every such error.
    """
    from kfp_server_api import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        problem = f"{what} failed: {_said(error)}"
        if error.status == HTTPStatus.NOT_FOUND:
            remedy = _NOT_THERE
        if error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN) or 300 <= (error.status or 0) < 400:
            remedy = _SIGN_IN
        raise error_of_status(error.status, problem, remedy) from None
    except ForeignAnswerError as error:
        raise UserError(f"{what} failed: {error}.", _WHERE) from None
    except (HTTPError, TimeoutError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        text = (str(reason).splitlines() or [type(reason).__name__])[0][:300]
        raise UnavailableError(
            f"{what} failed: {text}", remedy or "Check kubeflow_host; is the port-forward running? docs/kubeflow.md."
        ) from None


def _said(error: Any) -> str:
    """The service's message, without its stack of internal errors."""
    try:
        content = json.loads(error.body or "")
        text = content.get("error_message") or content.get("message") or content.get("error") or ""
    except (ValueError, AttributeError):
        text = ""
    place = (error.headers or {}).get("Location", "") if 300 <= (error.status or 0) < 400 else ""
    if place:
        return f"{error.status} {error.reason}: one is sent on to {place[:200]}, a page to sign in or another address"
    return f"{error.status} {text or error.reason}"[:500]

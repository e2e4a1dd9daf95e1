"""HTTP requests to BigQuery, and their answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from gpu_pipelines.emulator.api_error import ApiError, answer_to
from gpu_pipelines.emulator.rest import HttpRequest

if TYPE_CHECKING:
    from gpu_pipelines.emulator.bigquery.service import Answer, BigQuery
    from gpu_pipelines.emulator.vertex_api import VertexApi

_REASONS = {400: "invalid", 401: "authError", 403: "accessDenied", 404: "notFound", 409: "duplicate"}
_PROJECT = re.compile(r"(?:/upload)?/bigquery/v2/projects/([^/]+)/.*")


def serves(path: str) -> bool:
    """Whether a path belongs to BigQuery."""
    return path.startswith(("/bigquery/", "/upload/bigquery/"))


def answered(
    bigquery: BigQuery, verb: str, target: str, headers: Mapping[str, str], content: bytes, host: str
) -> Answer:
    """The status, answer and headers for a request.

    Args:
        bigquery: the service.
        verb: GET, POST and so on.
        target: path and query.
        headers: the request's headers.
        content: its body.
        host: the server's address.

    Raises:
        ApiError: the answer is an error.
    """
    address, headers = urlsplit(target), {name.title(): value for name, value in headers.items()}
    path = unquote(address.path)
    if path.startswith("/upload/"):
        return bigquery.upload(verb, path, dict(parse_qsl(address.query)), headers, content, host)
    request = HttpRequest.of(verb, target, headers.get("Content-Type", ""), content)
    query = {name: values[-1] for name, values in request.query.items()}
    return 200, bigquery.answer(verb, path, query, request.body if content.strip() else None), {}


def respond(
    api: VertexApi, verb: str, target: str, headers: Mapping[str, str], content: bytes, host: str
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """The same for a server's project, with errors in BigQuery's form."""
    try:
        if match := _PROJECT.fullmatch(unquote(urlsplit(target).path)):
            api.state.names.number(f"projects/{match[1]}")
        return answered(api.bigquery(), verb, target, headers, content, host)
    except Exception as error:
        told = answer_to(error)
        return told.code, error_of(told), {}


def error_of(error: ApiError) -> dict[str, Any]:
    """An error in BigQuery's form: with a reason, which its clients read."""
    body = error.body()
    reason = _REASONS.get(error.code, "notImplemented" if error.code == 501 else "backendError")
    body["error"]["errors"] = [{"message": error.message, "domain": "global", "reason": reason}]
    return body

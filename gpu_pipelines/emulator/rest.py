"""The REST interface: maps a verb and a path to the request of an API."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.not_emulated import refusal
from gpu_pipelines.emulator.project.permissions import token_of
from gpu_pipelines.emulator.services import REGION, State
from gpu_pipelines.emulator.transcoding import as_json, parse

#: Parameters of the protocol, not of a request: https://cloud.google.com/apis/docs/system-parameters.
_SYSTEM_PARAMETERS = {
    *("alt", "$alt", "fields", "$fields", "key", "prettyPrint", "$prettyPrint", "quotaUser", "$.xgafv", "callback"),
    *("access_token", "oauth_token", "uploadType", "upload_protocol"),
}
#: Parameters of lists; they are accepted, but whole answers are returned.
_OF_LISTS = {"pageSize", "pageToken", "filter", "orderBy"}
_OF_PACKAGES = {*_OF_LISTS, "tagId", "updateMask", "view", "force"}


@dataclass(frozen=True)
class HttpRequest:
    """A request.

    Attributes:
        verb: GET, POST and so on.
        path: the path alone.
        query: its parameters, without those of the protocol.
        kind: content type of the body.
        content: the body.
        account: the sender.
    """

    verb: str
    path: str
    query: dict[str, list[str]]
    kind: str
    content: bytes
    account: str = ""

    @classmethod
    def of(cls, verb: str, target: str, kind: str, content: bytes, account: str = "") -> HttpRequest:
        """A request from the request line and the body."""
        address = urlsplit(target)
        query = parse_qs(address.query, keep_blank_values=True)
        kept = {name: values for name, values in query.items() if name not in _SYSTEM_PARAMETERS}
        return cls(verb, unquote(address.path), kept, kind, content, account)

    @property
    def body(self) -> dict[str, Any]:
        """The body as JSON."""
        try:
            found = read_json(self.content) if self.content.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"Invalid JSON payload received. {error}") from error
        if not isinstance(found, dict):
            raise ApiError(400, "Invalid JSON payload received. It is no object.")
        return found

    def parameter(self, name: str) -> str:
        """A parameter, or an empty text."""
        return self.query.get(name, [""])[-1]


def read_json(content: bytes) -> Any:
    """Parses strict JSON: Python's parser accepts NaN and Infinity, and numbers that are too large.

    Raises:
        ValueError, RecursionError: it is invalid.
    """

    def number(text: str) -> float:
        if not math.isfinite(found := float(text)):
            raise ValueError(f"{text[:40]} is no number of JSON.")
        return found

    return json.loads(content, parse_float=number, parse_constant=number)


Answer = dict[str, Any] | bytes

#: The path where a service account's key is exchanged for a token.
TOKENS = "/token"


def answer(state: State, request: HttpRequest) -> Answer:
    """The answer to a request.

    Raises:
        ApiError: the answer is an error.
    """
    for method, _ in state.handlers.values():
        for binding in method.bindings:
            match = binding.path.fullmatch(request.path)
            if match and binding.verb == request.verb:
                parsed = parse(method, binding, match.groups(), request.query, request.body)
                return as_json(state.call(method, parsed, request.account))
    for verb, pattern, handle, taken in _OTHERS:
        match = re.fullmatch(pattern, request.path)
        if match and request.verb in verb.split("|"):
            _check_query(request, taken)
            return handle(state, request, **match.groupdict())
    raise refusal(request.verb, request.path) or ApiError(404, f"There is no {request.verb} {request.path}.")


def _check_query(request: HttpRequest, taken: set[str]) -> None:
    if unknown := sorted(set(request.query) - taken):
        text = f'Invalid JSON payload received. Unknown name "{unknown[0]}": Cannot bind query parameter.'
        raise ApiError(400, text)
    if not re.fullmatch(r"[0-9]{0,9}", size := request.parameter("pageSize")):
        raise ApiError(400, f"Invalid value at 'page_size' (TYPE_INT32), {size!r}.")
    if request.parameter("pageToken"):
        raise ApiError(400, f"Invalid page token: {request.parameter('pageToken')!r}.")


def _known(state: State, project: str) -> str:
    """An existing project; raises ApiError for another."""
    state.names.number(f"projects/{project}")
    return project


def _operation(state: State, request: HttpRequest, name: str) -> Answer:
    return as_json(state.operations.get(name))


def _entries(state: State, request: HttpRequest) -> Answer:
    return state.logs.answer(request.body)


def _repository(state: State, request: HttpRequest, project: str, location: str, repository: str) -> Answer:
    return state.repositories.repository(_known(state, project), location, repository)


def _policy_of_repository(state: State, request: HttpRequest, project: str, location: str, repository: str) -> Answer:
    return state.repositories.policy(_known(state, project), location, repository)


def _packages(state: State, request: HttpRequest, parent: str, path: str) -> Answer:
    _known(state, parent.split("/")[1])
    query = {name: values[-1] for name, values in request.query.items()}
    return state.repositories.answer(request.verb, parent, path, query, request.body)


def _upload(state: State, request: HttpRequest, project: str, repository: str) -> Answer:
    return state.repositories.upload(_known(state, project), REGION, repository, request.kind, request.content)


def _packages_here(state: State, request: HttpRequest, project: str, repository: str, path: str) -> Answer:
    parent = f"projects/{project}/locations/{REGION}/repositories/{repository}"
    return _packages(state, request, parent, path)


def _download(
    state: State, request: HttpRequest, project: str, repository: str, package: str, reference: str
) -> Answer:
    _known(state, project)
    return state.repositories.download(REGION, repository, package, reference)


def _project(state: State, request: HttpRequest, version: str, project: str) -> Answer:
    return state.project.told(project, version)


def _policy(state: State, request: HttpRequest, version: str, project: str) -> Answer:
    state.project.told(project, version)
    return state.project.policy()


def _permissions(state: State, request: HttpRequest, project: str, **_: str) -> Answer:
    if project != "-":
        _known(state, project)
    return _held(state, request, request.body.get("permissions", []))


def _held(state: State, request: HttpRequest, asked: Iterable[Any], bucket: str = "") -> Answer:
    told = state.project.permissions(asked).get("permissions", [])
    held = [each for each in told if state.permissions.has(request.account, each, bucket)]
    return {"permissions": held} if held else {}


def _service(state: State, request: HttpRequest, project: str, service: str) -> Answer:
    return state.project.service(project, service)


def _services(state: State, request: HttpRequest, project: str) -> Answer:
    return state.project.list_services(project, request.parameter("filter"))


def _batch_of_services(state: State, request: HttpRequest, project: str) -> Answer:
    return state.project.batch_services(project, request.query.get("names", []))


def _quotas(state: State, request: HttpRequest, project: str) -> Answer:
    _known(state, project)
    return state.project.quotas()


def _secret(state: State, request: HttpRequest, project: str, secret: str, version: str) -> Answer:
    return state.secrets.access(project, secret, version)


def _service_account(state: State, request: HttpRequest, project: str, address: str) -> Answer:
    return state.project.service_account(project, address)


def _token(state: State, request: HttpRequest) -> Answer:
    assertion = parse_qs(request.content.decode("utf-8", "replace")).get("assertion", [""])[0]
    return {"access_token": token_of(assertion), "expires_in": 3600, "token_type": "Bearer"}


def _bucket_permissions(state: State, request: HttpRequest, bucket: str) -> Answer:
    return _held(state, request, request.query.get("permissions", []), bucket)


_PROJECT = r"(?P<project>[^/:]+)"
_PARENT = rf"projects/{_PROJECT}/locations/(?P<location>[^/]+)/repositories/(?P<repository>[^/]+)"
_Handler = Callable[..., Answer]
_OTHERS: list[tuple[str, str, _Handler, set[str]]] = [
    ("GET", r"/v1/(?P<name>projects/.+/operations/\d+)", _operation, set()),
    ("POST", r"/v1/(?P<name>projects/.+/operations/\d+):wait", _operation, set()),
    ("POST", r"/v2/entries:list", _entries, set()),
    ("GET", rf"/v1/{_PARENT}:getIamPolicy", _policy_of_repository, set()),
    ("GET", rf"/v1/{_PARENT}", _repository, set()),
    (
        "GET|POST|PATCH|DELETE",
        r"/v1/(?P<parent>projects/[^/]+/locations/[^/]+/repositories/[^/]+)/(?P<path>packages.*)",
        _packages,
        _OF_PACKAGES,
    ),
    ("GET", rf"/(?P<version>v1|v3)/projects/{_PROJECT}", _project, set()),
    ("POST", rf"/(?P<version>v1|v3)/projects/{_PROJECT}:getIamPolicy", _policy, set()),
    ("POST", rf"/(?P<version>v1|v3)/projects/{_PROJECT}:testIamPermissions", _permissions, set()),
    ("GET", rf"/v1/projects/{_PROJECT}/services/(?P<service>[^/]+)", _service, set()),
    ("GET", rf"/v1/projects/{_PROJECT}/services", _services, _OF_LISTS),
    ("GET", rf"/v1/projects/{_PROJECT}/services:batchGet", _batch_of_services, {"names", "parent"}),
    (
        "GET",
        rf"/v1/projects/{_PROJECT}/locations/global/services/aiplatform\.googleapis\.com/quotaInfos",
        _quotas,
        _OF_LISTS,
    ),
    ("GET", rf"/v1/projects/{_PROJECT}/secrets/(?P<secret>[^/]+)/versions/(?P<version>[^/:]+):access", _secret, set()),
    ("GET", rf"/v1/projects/{_PROJECT}/serviceAccounts/(?P<address>[^/:]+)", _service_account, set()),
    ("POST", rf"/v1/projects/{_PROJECT}/serviceAccounts/(?P<address>[^/:]+):testIamPermissions", _permissions, set()),
    (
        "GET",
        r"/storage/v1/b/(?P<bucket>[^/]+)/iam/testPermissions",
        _bucket_permissions,
        {"permissions", "userProject"},
    ),
    ("POST", TOKENS, _token, set()),
    # A repository as KFP's client sees it: at its host's name, which has no location here.
    ("POST", rf"/{_PROJECT}/(?P<repository>[^/]+)/?", _upload, set()),
    (
        "GET|POST|PATCH|DELETE",
        rf"/{_PROJECT}/(?P<repository>[^/]+)/(?P<path>packages(/.*)?)",
        _packages_here,
        _OF_PACKAGES,
    ),
    ("GET", rf"/{_PROJECT}/(?P<repository>[^/]+)/(?P<package>[^/]+)/(?P<reference>[^/]+)", _download, set()),
]

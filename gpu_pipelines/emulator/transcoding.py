"""Converts HTTP requests to protobuf requests of API methods, with the bindings in Google's own client library.

Each method's path, verb and body are read from the REST transport of google-cloud-aiplatform, so that the server
accepts exactly the published interface.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from gpu_pipelines.emulator.api_error import ApiError

_PART = re.compile(r"\{([\w.]+)=([^}]*)\}")


@dataclass(frozen=True)
class Binding:
    """One HTTP binding of a method.

    Attributes:
        verb: GET, POST and so on.
        path: pattern of the path; its groups are numbered.
        fields: the request fields of the groups.
        body: the request field of the body; `*` for all of it, empty for no body.
    """

    verb: str
    path: re.Pattern[str]
    fields: tuple[str, ...]
    body: str


@dataclass(frozen=True)
class Method:
    """A method of a service.

    Attributes:
        service: full name of the service.
        name: name of the method.
        request: the proto-plus type of its request.
        bindings: its HTTP bindings.
    """

    service: str
    name: str
    request: Any
    bindings: tuple[Binding, ...]


def method(service: str, name: str) -> Method:
    """A method of google-cloud-aiplatform.

    Args:
        service: `JobService` and the like.
        name: `CreateCustomJob` and the like.
    """
    folder = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", service).lower()
    module = import_module(f"google.cloud.aiplatform_v1.services.{folder}.transports.rest_base")
    stub = getattr(getattr(module, f"_Base{service}RestTransport"), f"_Base{name}")
    return Method(
        service=f"google.cloud.aiplatform.v1.{service}",
        name=name,
        request=getattr(import_module("google.cloud.aiplatform_v1"), f"{name}Request"),
        bindings=bindings_of(stub),
    )


def bindings_of(stub: Any) -> tuple[Binding, ...]:
    """The HTTP bindings of a method, from its class in a REST transport; none if there is no such class."""
    options: list[dict[str, str]] = getattr(stub, "_get_http_options", list)()
    return tuple(_binding(option["method"], option["uri"], option.get("body", "")) for option in options)


def _binding(verb: str, template: str, body: str) -> Binding:
    fields = tuple(field for field, _ in _PART.findall(template))
    pieces = _PART.split(template)
    for place in range(2, len(pieces), 3):
        pieces[place] = "(" + re.escape(pieces[place]).replace(r"\*", "[^/:]+") + ")"
    for place in range(0, len(pieces), 3):
        pieces[place] = re.escape(pieces[place])
    path = "".join(piece for place, piece in enumerate(pieces) if place % 3 != 1)
    return Binding(verb.upper(), re.compile(path), fields, body)


def parse(
    found: Method, binding: Binding, groups: Sequence[str], query: Mapping[str, list[str]], content: dict[str, Any]
) -> Any:
    """The request of a method.

    Raises:
        ApiError: the API has no such field, or a value has another type.
    """
    if content and not binding.body:
        raise ApiError(400, f"Invalid JSON payload received. {found.name} takes no body.")
    document = {binding.body: content} if binding.body not in ("", "*") else dict(content)
    for name, values in query.items():
        _put(document, name, _typed(found.request.pb().DESCRIPTOR, name, values))
    for name, value in zip(binding.fields, groups, strict=True):
        _put(document, name, value)
    return parsed(found.request, document)


def parsed(kind: Any, document: Mapping[str, Any]) -> Any:
    """A proto-plus message from JSON.

    Raises:
        ApiError: it is not one.
    """
    message = kind()
    check_objects(document, kind.pb(message).DESCRIPTOR)
    try:
        json_format.ParseDict(document, kind.pb(message))
    except (json_format.ParseError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ApiError(400, f"Invalid JSON payload received. {error}") from error
    return message


def check_objects(document: Mapping[str, Any], descriptor: Descriptor, path: str = "") -> None:
    """Checks that messages are JSON objects: protobuf's reader takes an empty text for one.

    Raises:
        ApiError: names the field that is not.
    """
    for name, value in document.items():
        field = descriptor.fields_by_camelcase_name.get(name) or descriptor.fields_by_name.get(name)
        kind, here = field.message_type if field else None, f"{path}.{name}" if path else name
        if field is None or kind is None or value is None or kind.full_name.startswith("google.protobuf."):
            continue
        if kind.GetOptions().map_entry:
            kind = kind.fields_by_name["value"].message_type
            values = list(value.values()) if isinstance(value, Mapping) and kind else []
        else:
            values = value if field.is_repeated and isinstance(value, list) else [value]
        for each in values if kind and not kind.full_name.startswith("google.protobuf.") else []:
            if not isinstance(each, Mapping):
                raise ApiError(400, f"Invalid value at '{here}' ({kind.full_name}), {json.dumps(each)[:80]}.")
            check_objects(each, kind, here)


def _put(document: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        inner = document.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ApiError(400, f"Invalid JSON payload received. {parent} is no object.")
        document = inner
    document[last] = value


def _typed(descriptor: Descriptor, path: str, values: list[str]) -> Any:
    """A query parameter as a JSON value; one that the API does not know is left to the parser."""
    field: FieldDescriptor | None = None
    for name in path.split("."):
        if descriptor is None:
            break
        field = descriptor.fields_by_camelcase_name.get(name) or descriptor.fields_by_name.get(name)
        descriptor = field.message_type if field else None
    if field is not None and field.is_repeated:
        return values
    if field is not None and field.type == FieldDescriptor.TYPE_BOOL and values[-1] in ("true", "false"):
        return values[-1] == "true"
    return values[-1]


def as_json(message: Any) -> dict[str, Any]:
    """A message, proto-plus or plain, as the JSON of the REST interface.

    Raises:
        ApiError: it has a number that JSON lacks, which a gRPC client may send.
    """
    plain = type(message).pb(message) if hasattr(type(message), "pb") else message
    try:
        document: dict[str, Any] = json_format.MessageToDict(plain)
    except json_format.SerializeToJsonError as error:
        raise ApiError(400, f"Request contains an invalid argument. {error}") from error
    return document

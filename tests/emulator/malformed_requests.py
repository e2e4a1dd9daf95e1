"""Requests that are wrong by how they are made: a valid one, with one thing in it that cannot be right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

PARENT = "/v1/projects/example-project/locations/us-central1"
REPOSITORY = f"{PARENT}/repositories/pipelines"
#: Messages whose fields are free.
_FREE = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
_TEXTS = ("google.protobuf.Timestamp", "google.protobuf.Duration", "google.protobuf.FieldMask")
_WHOLE = {FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT32}


@dataclass(frozen=True)
class Sent:
    """A request.

    Attributes:
        verb: GET, POST and so on.
        path: with the query.
        body: what is sent.
        kind: content type.
        message: type of the body, where it is a message of protobuf.
    """

    verb: str
    path: str
    body: Any = None
    kind: str = "application/json"
    message: Any = None

    @property
    def content(self) -> bytes | None:
        """The bytes of the body."""
        return self.body if isinstance(self.body, bytes) or self.body is None else json.dumps(self.body).encode()


def broken(valid: Sent) -> st.SearchStrategy[Sent]:
    """All ways in which a request is made a wrong one."""
    ways = []
    if named := [name for name in ("example-project", "example-bucket") if name in valid.path.partition("?")[0]]:
        ways.append(_wrong_path(valid, named[0]))
    if not valid.path.startswith(("/storage", "/upload")):
        # Cloud Storage passes over what it does not know.
        ways.append(_unknown_parameter(valid))
    if isinstance(valid.body, dict):
        ways += [_no_object(valid)]
        if valid.message is not None:
            places = list(_places(valid.message.pb().DESCRIPTOR, valid.body, ()))
            values = [_wrong_value(valid, *place) for place in places]
            ways += [st.sampled_from(values).flatmap(lambda wrong: wrong), _unknown_field(valid)]
    return st.one_of(ways)


def with_values(valid: Sent, wrong: Mapping[str, Any]) -> Iterator[Sent]:
    """A request with each of some fields, by their dotted paths, of a value that is of its type and wrong."""
    for path, value in wrong.items():
        yield replace(valid, body=_with(valid.body, tuple(_key(part) for part in path.split(".")), value))


def _key(part: str) -> str | int:
    return int(part) if part.isdigit() else part


def _wrong_path(valid: Sent, name: str) -> st.SearchStrategy[Sent]:
    """Another project or bucket than there is."""
    odd = st.text(min_size=1, max_size=30).map(lambda text: f"x{text}".encode("utf-8", "ignore")).map(quote)
    changed = odd.map(lambda text: valid.path.replace(name, text.replace("/", "%2F"), 1))
    return changed.map(lambda path: replace(valid, path=path))


def _unknown_parameter(valid: Sent) -> st.SearchStrategy[Sent]:
    name = st.text("abcdefghij", min_size=3, max_size=9).map(lambda text: f"no_{text}")
    mark = "&" if "?" in valid.path else "?"
    return st.builds(lambda text: replace(valid, path=f"{valid.path}{mark}{text}=1"), name)


def _no_object(valid: Sent) -> st.SearchStrategy[Sent]:
    def is_object(content: bytes) -> bool:
        try:
            return isinstance(json.loads(content), dict) or not content.strip()
        except (ValueError, RecursionError):
            return not content.strip()

    cut = st.integers(1, len(valid.content or b"") - 1).map(lambda end: (valid.content or b"")[:end])
    scalars = st.one_of(st.integers(), st.text(), st.booleans(), st.none(), st.lists(st.integers(), max_size=3))
    deep = st.integers(2_000, 100_000).map(lambda count: b'{"a":' + b"[" * count)
    numbers = st.sampled_from([b'{"displayName": NaN}', b'{"displayName": 1e999}', b'{"displayName": -Infinity}'])
    found = st.one_of(st.binary(min_size=1), cut, scalars.map(lambda value: json.dumps(value).encode()), deep, numbers)
    kept = found.filter(lambda content: not is_object(content) or b"Infinity" in content or b"NaN" in content)
    return kept.map(lambda content: replace(valid, body=content))


def _unknown_field(valid: Sent) -> st.SearchStrategy[Sent]:
    messages = [()] + [
        path
        for path, field in _places(valid.message.pb().DESCRIPTOR, valid.body, ())
        if field.message_type is not None
        and field.message_type.full_name not in (*_FREE, *_TEXTS)
        and not field.is_repeated
    ]
    name = st.text("abcdefghij", min_size=3, max_size=9).map(lambda text: f"no{text.title()}")
    return st.builds(
        lambda path, key: replace(valid, body=_with(valid.body, (*path, key), 1)), st.sampled_from(messages), name
    )


def _wrong_value(valid: Sent, path: tuple[str | int, ...], field: FieldDescriptor) -> st.SearchStrategy[Sent]:
    return _not_of(field).map(lambda value: replace(valid, body=_with(valid.body, path, value)))


def _not_of(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values that a field cannot have."""
    words = st.text("abcxyz !", min_size=1, max_size=20)
    if field.is_repeated and not (field.message_type and field.message_type.GetOptions().map_entry):
        return st.one_of(words, st.integers(), st.just({"a": 1}))
    if field.message_type is not None:
        numbers = st.floats(allow_nan=False, allow_infinity=False)
        return st.one_of(words, st.just(""), st.booleans(), numbers, st.just(["a"]))
    if field.type == FieldDescriptor.TYPE_STRING:
        return st.one_of(st.integers(), st.booleans(), st.just({}), st.just(["a"]))
    if field.type in _WHOLE:
        return st.one_of(words, st.just(1.5), st.just(2**70), st.just(-(2**70)), st.just([]))
    return st.one_of(words, st.just({"a": 1}), st.just([1]))


def _places(descriptor: Descriptor, value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, FieldDescriptor]]:
    """Where the fields of a body are, and which they are; free ones have no places in them."""
    for name, held in value.items():
        field = descriptor.fields_by_camelcase_name[name]
        yield (*path, name), field
        inner = field.message_type
        if inner is None or inner.full_name in (*_FREE, *_TEXTS) or inner.GetOptions().map_entry:
            continue
        for place, each in enumerate(held) if isinstance(held, list) else [(None, held)]:
            yield from _places(inner, each, (*path, name) if place is None else (*path, name, place))


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    first, *rest = path
    if isinstance(value, list):
        return [_with(each, tuple(rest), new) if place == first else each for place, each in enumerate(value)]
    held = value if isinstance(value, dict) else {}
    return {**held, first: _with(held.get(first), tuple(rest), new)}

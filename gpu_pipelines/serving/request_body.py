"""Reads instances and parameters from the bytes of a request; anything wrong with them is a `WrongRequest`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from gpu_pipelines.errors import nearest

_FORM = 'Send {"instances": [...], "parameters": {...}}.'
_SHOWN = 60
#: zlib's code for a stream in the format of gzip.
_GZIP = 16 + zlib.MAX_WBITS
#: Bytes to unpack at once. zlib copies what follows a member, and a client may send a member every 20 bytes.
_PIECE = 4096


class WrongRequest(Exception):  # noqa: N818 (a client's mistake; the server goes on)
    """A client's request cannot be predicted; the message says what is wrong and what to send."""


class TooLargeError(Exception):
    """A body is larger than the server accepts."""


def inflated(body: bytes, most: int) -> bytes:
    """The content of a body that was compressed by gzip.

    Args:
        body: one or more members, RFC 1952.
        most: the most bytes that it may hold.

    Raises:
        TooLargeError: it holds more; the rest was not unpacked.
        WrongRequest: it is not gzip, or cut off.
    """
    found, stream = bytearray(), zlib.decompressobj(wbits=_GZIP)
    for start in range(0, len(body), _PIECE):
        rest = body[start : start + _PIECE]
        while rest := rest.lstrip(b"\0") if stream.eof else rest:
            if stream.eof:
                stream = zlib.decompressobj(wbits=_GZIP)
            try:
                found += stream.decompress(rest, most - len(found) + 1)
            except zlib.error as error:
                raise WrongRequest(f"The body is not gzip, as Content-Encoding says: {error}.") from None
            if len(found) > most:
                raise TooLargeError
            rest = stream.unused_data
    if not stream.eof:
        raise WrongRequest("The body is cut off: its gzip has no end.")
    return bytes(found)


def parsed(body: bytes, max_instances: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The instances and parameters of a request.

    Args:
        body: JSON, in the form of Vertex AI.
        max_instances: the most instances accepted.

    Raises:
        WrongRequest: it does not have this form.
    """
    document = document_of(body, _FORM)
    require_keys(document, ("instances", "parameters"), "The body")
    instances, parameters = document.get("instances"), document.get("parameters")
    if not isinstance(instances, list):
        told = f"is {kind_of(instances)}, not a list" if "instances" in document else "is missing"
        raise WrongRequest(f"instances {told}. {_FORM}")
    require_count("instances", len(instances), max_instances)
    return instances, parameters_of(parameters, _FORM)


def document_of(body: bytes, form: str) -> dict[str, Any]:
    """The JSON object of a body.

    Args:
        body: JSON.
        form: what to send, for the message.

    Raises:
        WrongRequest: it is not a JSON object.
    """
    try:
        document = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise WrongRequest(f"The body is not JSON: {why[:200]}. {form}") from None
    if not isinstance(document, dict):
        raise WrongRequest(f"The body is {kind_of(document)}, not an object. {form}")
    return document


def parameters_of(given: Any, form: str) -> dict[str, Any]:
    """The parameters of a request, which may be left out. Raises `WrongRequest`."""
    if given is not None and not isinstance(given, dict):
        raise WrongRequest(f"parameters is {kind_of(given)}, not an object. {form}")
    return given or {}


def require_count(name: str, count: int, most: int) -> None:
    """Checks the number of instances. Raises `WrongRequest`."""
    if not 1 <= count <= most:
        raise WrongRequest(f"{name} has {count} entries; send 1 to {most}.")


def field_of(instance: Any, name: str, example: str, beside: tuple[str, ...] = ()) -> str:
    """A text field of an instance.

    Args:
        instance: an entry of `instances`.
        name: the field.
        example: what an instance looks like, for the message.
        beside: other fields that it may have.

    Raises:
        WrongRequest: it is missing or not a text, or there is an unknown field.
    """
    if not isinstance(instance, dict):
        raise WrongRequest(f"is {kind_of(instance)}, not an object. Send {example}.")
    require_keys(instance, dict.fromkeys((name, *beside)), "It", f" Send {example}.")
    value = instance.get(name)
    if not isinstance(value, str):
        told = f"{name} is {kind_of(value)}, not a text" if name in instance else f"has no {name}"
        raise WrongRequest(f"{told}. Send {example}.")
    return value


def text_of(instance: Any, name: str, longest: int) -> str:
    """The text of an instance, which must be possible to encode.

    Args:
        instance: an entry of `instances`.
        name: its field.
        longest: the most characters of the text.

    Raises:
        WrongRequest: it is missing, empty, too long, or not Unicode.
    """
    return checked_text(field_of(instance, name, f'{{"{name}": "…"}}'), name, longest)


def texts_of(instance: Any, names: tuple[str, ...], longest: int) -> tuple[str, ...]:
    """The texts of an instance in some fields, all of which it must have; as `text_of`."""
    example = json.dumps(dict.fromkeys(names, "…"), ensure_ascii=False)
    return tuple(checked_text(field_of(instance, name, example, names), name, longest) for name in names)


def checked_text(text: str, name: str, longest: int) -> str:
    """Checks that a text can be encoded, and returns it.

    Raises:
        WrongRequest: it is empty, too long, or not Unicode.
    """
    if not text:
        raise WrongRequest(f"{name} is empty. Send a text.")
    if len(text) > longest:
        raise WrongRequest(f"{name} has {len(text):,} characters; send at most {longest:,}.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise WrongRequest(f"{name} has half of a surrogate pair. Send valid Unicode.") from None
    return text


def whole_parameter(parameters: Mapping[str, Any], name: str, default: int, largest: int) -> int:
    """A parameter that is a whole number from 0.

    Raises:
        WrongRequest: it is something else, or too large.
    """
    value = parameters.get(name, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # Google's clients send every number as a double.
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        raise WrongRequest(f"parameters.{name} is {_shown(value)}; send a whole number from 0 to {largest:,}.")
    return value


def require_keys(given: Mapping[str, Any], known: Iterable[str], what: str, remedy: str = "") -> None:
    """Checks that an object has no unknown keys.

    Raises:
        WrongRequest: it has one, perhaps a typing error.
    """
    names = dict.fromkeys(known)  # a row of numbers may have thousands
    unknown = next((key for key in given if key not in names), None)
    if unknown is not None:
        told = nearest(unknown, list(names)) if names else "There are none."
        raise WrongRequest(f"{what} has an unknown field {unknown[:_SHOWN]!r}. {told}{remedy}")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it has {constant}, which JSON does not have")


def kind_of(value: Any) -> str:
    """The kind of a JSON value, for a message."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")


def _shown(value: Any) -> str:
    return repr(value)[:_SHOWN] if isinstance(value, (str, int, float)) else kind_of(value)

"""Conditions of tasks, and expressions that select from a parameter: the part of CEL that KFP's compiler writes."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.numbers import as_protobuf_writes

_TOKEN = re.compile(
    r"\s*(?:(?P<input>inputs\.parameter_values\[(?:'(?P<name>(?:[^'\\]|\\.)*)')\])|(?P<number>-?\d+(?:\.\d+)?)"
    r"|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<word>[A-Za-z]+)|(?P<sign>&&|\|\||[=!<>]=|[<>!()]))"
)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CAST: dict[str, Callable[[Any], Any]] = {"int": lambda value: int(float(value)), "double": float, "string": str}
_SELECTED = re.compile(r"parseJson\(string_value\)((?:\[(?:\d+|\"(?:[^\"\\]|\\.)*\"|'[^']*')\])*)")


def holds(condition: str, values: Mapping[str, Any]) -> bool:
    """Whether a condition holds.

    Args:
        condition: the condition in CEL; an empty one holds.
        values: the parameters that it can name.

    Raises:
        ApiError: the compiler writes no such condition, or it compares incomparable values.
    """
    return not condition or bool(_Reader(condition, values).whole())


def check_condition(condition: str) -> None:
    """Raises ApiError for a condition that cannot be read."""
    if condition:
        _Reader(condition, None).whole()


def selected(expression: str, value: Any) -> Any:
    """The value that an expression selects from a parameter: a field of a dictionary, an element of a list.

    Raises:
        ApiError: the compiler writes no such expression, or there is no such field.
    """
    match = _SELECTED.fullmatch(expression)
    if match is None:
        raise ApiError(400, f"The expression {expression!r} cannot be read.")
    found = json.loads(value) if isinstance(value, str) else value
    for key in re.findall(r"\[(\d+|\"(?:[^\"\\]|\\.)*\"|'[^']*')\]", match[1]):
        try:
            found = found[int(key) if key.isdigit() else key[1:-1]]
        except (KeyError, IndexError, TypeError) as error:
            raise ApiError(400, f"{expression} selects nothing of {value!r}.") from error
    return found


class _Reader:
    """Parses a condition from left to right; without values it is only checked."""

    def __init__(self, text: str, values: Mapping[str, Any] | None) -> None:
        self._text, self._values = text, values
        self._tokens: list[re.Match[str]] = []
        place = 0
        while text[place:].strip():
            match = _TOKEN.match(text, place)
            if match is None:
                raise self._error()
            self._tokens.append(match)
            place = match.end()

    def whole(self) -> Any:
        found = self._any()
        if self._tokens:
            raise self._error()
        return found

    def _error(self) -> ApiError:
        return ApiError(400, f"The condition {self._text!r} cannot be read.")

    def _next(self) -> str:
        return self._tokens[0][0].strip() if self._tokens else ""

    def _take(self) -> re.Match[str]:
        if not self._tokens:
            raise self._error()
        return self._tokens.pop(0)

    def _any(self) -> Any:
        found = self._all()
        while self._next() == "||":
            self._take()
            found = self._all() or found
        return found

    def _all(self) -> Any:
        found = self._comparison()
        while self._next() == "&&":
            self._take()
            found = self._comparison() and found
        return found

    def _comparison(self) -> Any:
        left = self._one()
        if self._next() not in _COMPARE:
            return left
        compare = _COMPARE[self._take()[0].strip()]
        right = self._one()
        if self._values is None:
            return True
        if isinstance(right, str) and isinstance(left, int | float):
            # For the compiler, the items of a step's list are texts, whatever they are.
            left = json.dumps(as_protobuf_writes(left))
        try:
            return compare(left, right)
        except TypeError as error:
            raise ApiError(400, f"The condition {self._text!r} compares {left!r} with {right!r}.") from error

    def _one(self) -> Any:
        token = self._take()
        sign, word = token["sign"], token["word"]
        if sign == "!":
            return not self._one()
        if sign == "(":
            return self._closed()
        if token["input"]:
            return self._values.get(token["name"]) if self._values is not None else None
        if token["number"]:
            return float(token["number"]) if "." in token["number"] else int(token["number"])
        if token["text"]:
            return re.sub(r"\\(.)", r"\1", token["text"][1:-1])
        if word in ("true", "false"):
            return word == "true"
        if word in _CAST and self._next() == "(":
            self._take()
            return self._cast(word, self._closed())
        raise self._error()

    def _closed(self) -> Any:
        found = self._any()
        if self._take()["sign"] != ")":
            raise self._error()
        return found

    def _cast(self, word: str, value: Any) -> Any:
        if self._values is None:
            return value
        try:
            return _CAST[word](value)
        except (TypeError, ValueError) as error:
            raise ApiError(400, f"The condition {self._text!r} cannot read {value!r} as {word}.") from error

"""The filter language of lists and of Cloud Logging: comparisons, AND, OR, NOT and parentheses.

https://cloud.google.com/logging/docs/view/logging-query-language and https://google.aip.dev/160.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from gpu_pipelines.emulator.api_error import ApiError

Test = Callable[[Mapping[str, Any]], bool]

_TOKEN = re.compile(r'\s*(?:([()])|(!=|>=|<=|=~|!~|[=<>:])|("(?:[^"\\]|\\.)*")|((?:[^\s()=<>:!"]|"(?:[^"\\]|\\.)*")+))')
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:?\d\d)")
_SEVERITIES = ("DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY")


_DEEPEST = 50


def predicate(text: str) -> Test:
    """The condition of a filter.

    Raises:
        ApiError: it cannot be parsed.
    """
    if not text.strip():
        return lambda _: True
    reader = _Reader(text)
    found = reader.any_of()
    if reader.tokens:
        raise reader.error()
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.depth = text, 0
        self.tokens: list[str] = []
        place = 0
        while text[place:].strip():
            match = _TOKEN.match(text, place)
            if match is None:
                raise self.error()
            self.tokens.append(match[0].strip())
            place = match.end()

    def error(self) -> ApiError:
        return ApiError(400, f"Unparseable filter: {self.text}")

    def any_of(self) -> Test:
        tests = [self.all_of()]
        while self.tokens and self.tokens[0] == "OR":
            self.tokens.pop(0)
            tests.append(self.all_of())
        return lambda item: any(test(item) for test in tests)

    def all_of(self) -> Test:
        tests = [self.one()]
        while self.tokens and self.tokens[0] not in ("OR", ")"):
            if self.tokens[0] == "AND":
                self.tokens.pop(0)
            tests.append(self.one())
        return lambda item: all(test(item) for test in tests)

    def one(self) -> Test:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.error()
        found = self.one_of_these()
        self.depth -= 1
        return found

    def one_of_these(self) -> Test:
        token = self.take()
        if token == "NOT":  # noqa: S105
            denied = self.one()
            return lambda item: not denied(item)
        if token == "(":  # noqa: S105
            found = self.any_of()
            if self.take() != ")":
                raise self.error()
            return found
        return self.comparison(token, self.take(), _unquoted(self.take()))

    def take(self) -> str:
        if not self.tokens:
            raise self.error()
        return self.tokens.pop(0)

    def comparison(self, path: str, operator: str, wanted: str) -> Test:
        compare: dict[str, Callable[[Any, Any], bool]] = {
            "=": lambda held, value: held == value,
            "!=": lambda held, value: held != value,
            ">": lambda held, value: held > value,
            ">=": lambda held, value: held >= value,
            "<": lambda held, value: held < value,
            "<=": lambda held, value: held <= value,
            ":": lambda held, value: str(value) in str(held) or value == "*",
            "=~": lambda held, value: re.search(str(value), str(held)) is not None,
            "!~": lambda held, value: re.search(str(value), str(held)) is None,
        }
        if operator not in compare:
            raise self.error()
        if operator in ("=~", "!~"):
            try:
                re.compile(wanted)
            except (re.error, RecursionError, OverflowError) as error:
                raise self.error() from error

        def test(item: Mapping[str, Any]) -> bool:
            held = _at(item, path)
            if held is None:
                return operator in ("!=", "!~")
            if operator in (":", "=~", "!~"):
                return compare[operator](held, wanted)
            try:
                return compare[operator](_comparable(held), _comparable(wanted))
            except TypeError:
                # Severities and times are ordered, but not against words.
                return False

        return test


def _unquoted(token: str) -> str:
    return re.sub(r"\\(.)", r"\1", token[1:-1]) if token.startswith('"') else token


def _at(item: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path; names in snake case are also looked up in camel case."""
    held: Any = item
    for part in re.findall(r'"(?:[^"\\]|\\.)*"|[^."]+', path):
        name = _unquoted(part)
        if not isinstance(held, Mapping):
            return None
        held = held.get(name, held.get(re.sub(r"_(\w)", lambda match: match[1].upper(), name)))
    return held


def _comparable(value: Any) -> Any:
    text = str(value)
    if text in _SEVERITIES:
        return (_SEVERITIES.index(text), 0.0)
    if match := _TIMESTAMP.fullmatch(text):
        zone = match[3].replace("Z", "+00:00")
        return (datetime.fromisoformat(match[1] + zone).timestamp(), float(match[2] or 0))
    return text

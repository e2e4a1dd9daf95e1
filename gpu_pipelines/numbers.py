"""Numbers as users write them, as KFP passes them on, and as figures are shown."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

LARGEST_WHOLE_NUMBER = 2**53  # KFP passes numbers as doubles
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def number_of(text: str) -> float:
    """The number in a text; unlike `float`, it takes neither `1_0` nor `nan` nor digits of other scripts.

    Raises:
        ValueError: the text is not a number.
    """
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a number")
    return float(text)


def as_number(kind: type, value: Any) -> Any:
    """A number from JSON as an int or a float, if it stays the same number; any other value as it is.

    JSON of Google's services has a decimal point in every number, other JSON in none that is an integer. With another
    type the number would be equal, but its text in a digest would differ.

    Args:
        kind: the wanted type; if it is neither int nor float, the value is returned as it is.
        value: anything.
    """
    if kind not in (int, float) or type(value) not in (int, float) or not math.isfinite(value):
        return value
    return kind(value) if kind(value) == value else value


def as_protobuf_writes(value: Any) -> Any:
    """A value as protobuf writes it to JSON: its numbers are doubles, and integers have no fraction."""
    if isinstance(value, dict):
        return {key: as_protobuf_writes(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_protobuf_writes(each) for each in value]
    return whole(value)


def finite_json(text: str) -> Any:
    """Parses a step's output as the platforms do: Python writes NaN and Infinity, which JSON does not have.

    Raises:
        ValueError: it has one of these, or is not JSON.
    """

    def refuse(constant: str) -> None:
        raise ValueError(
            f"An output or a metric is {constant}, which JSON does not have. Leave it out, or make it a text."
        )

    return json.loads(text, parse_constant=refuse)


def finite_or_none(value: float) -> float | None:
    """A number that JSON and KFP can hold, or None for NaN and infinity."""
    return float(value) if math.isfinite(value) else None


def figure(value: float | None) -> str:
    """A figure in the form of tables: four decimals, or a power of ten if those would be useless or too long."""
    if value is None:
        return "–"
    return f"{value:,.4f}" if value == 0 or 1e-4 <= abs(value) < 1e7 else f"{value:.3e}"


def throughput(rate: float) -> float:
    """A rate with one decimal, or enough for four digits: a large model may need seconds for a row."""
    return float(f"{rate:.4g}") if rate < 1000 else round(rate, 1)


def throughput_told(rate: float) -> str:
    """A rate for people: an integer from 100 on, else with three digits."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def figure_or_count(value: float | None) -> str:
    """A metric of a run in the form of tables: KFP makes floats of counts, and 600 rows are not 600.0000.

    A 1.0 may be an accuracy.
    """
    is_count = isinstance(value, int) or (value is not None and value.is_integer() and value != 1)
    return f"{value:,.0f}" if is_count else figure(value)


def signed(value: float | None) -> str:
    """A difference with its sign, in the form of tables."""
    return figure(value) if value is None else f"{'+' if value > 0 else '−' if value < 0 else ''}{figure(abs(value))}"


def shown_beside(value: float, other: float) -> str:
    """A value with four decimals, or enough not to look equal to, or beyond, the value that it is compared with."""
    if not math.isfinite(value):
        return "not a finite number"
    for digits in (4, 6, 8):
        text = f"{value:.{digits}f}"
        if (float(text) > other) == (value > other) and (float(text) < other) == (value < other):
            return text
    return repr(value)


def whole(value: Any) -> Any:
    """A value; an integer if it is a number without a fraction: pandas makes floats of a column with missing values.

    A decimal number, which SQL writes with as many zeros as its type has digits, loses them.
    """
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else Decimal(f"{value:f}".rstrip("0"))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def number_in_text(text: str) -> str:
    """A text; for one such as `1.0` the integer: pandas writes it to CSV if another row has none."""
    return str(int(text.partition(".")[0])) if re.fullmatch(r"-?[0-9]{1,18}(\.0*)?", text) else text

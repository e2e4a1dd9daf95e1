"""One property of many rows: numbers, categories, or vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Numbers:
    """Numbers, float32 (rows,); NaN for a row without one."""

    values: np.ndarray

    @classmethod
    def of(cls, values: Sequence[float | None] | np.ndarray) -> Numbers:
        """Numbers in the precision of all values; equal ones stay equal, as tests by rank require."""
        found = np.array([np.nan if each is None else each for each in values], dtype=np.float64).astype(np.float32)
        return cls(np.where(np.isfinite(found), found, np.float32(np.nan)))


@dataclass(frozen=True)
class Categories:
    """Names, such as of classes; None for a row without one."""

    values: list[str | None]


@dataclass(frozen=True)
class Vectors:
    """Points in a space whose axes have no meaning by themselves, float32 (rows, directions)."""

    values: np.ndarray


Values = Numbers | Categories | Vectors


def joined(parts: Sequence[Values]) -> Values:
    """The values of several groups of rows, one after another; all of one kind."""
    first = parts[0]
    if isinstance(first, Categories):
        return Categories([value for part in parts for value in part.values])
    return type(first)(np.concatenate([part.values for part in parts]))


#: Numbers with at most this many distinct values count as names: 0 and 1, months, grades.
MOST_CODES = 10


def as_codes(values: Values) -> Values:
    """Numbers with only a few distinct values as categories; anything else as it is."""
    if not isinstance(values, Numbers):
        return values
    known = values.values[~np.isnan(values.values)]
    few = len(known) and len(np.unique(known)) <= MOST_CODES
    return named_codes(values) if few else values


def named_codes(values: Numbers) -> Categories:
    """Numbers as names, with enough digits to tell them from all others of their precision."""
    known = np.unique(values.values[~np.isnan(values.values)])
    names = {value: _name(value + 0.0) for value in known.tolist()}  # -0 is 0
    return Categories([names.get(value) for value in values.values.tolist()])


def _name(value: float) -> str:
    return next(name for digits in (6, 9) if np.float32(name := f"{value:.{digits}g}") == value)

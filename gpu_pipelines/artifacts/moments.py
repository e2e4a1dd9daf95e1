"""Count, mean and spread of numbers, computed for parts of the data and joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

#: A smaller spread, relative to the mean, is rounding: the numbers are all the same.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Moments:
    """Statistics of the numbers of some rows.

    Attributes:
        rows: number of rows.
        mean: mean of each of the numbers of a row.
        squares: for each, the sum of the squared differences from the mean.
    """

    rows: int
    mean: tuple[float, ...]
    squares: tuple[float, ...]

    @classmethod
    def of(cls, values: np.ndarray) -> Moments:
        """Moments of an array (rows, *shape) with one row or more."""
        numbers = values.reshape(len(values), -1).astype(np.float64)
        mean = numbers.mean(axis=0)
        return cls(len(numbers), tuple(mean.tolist()), tuple(((numbers - mean) ** 2).sum(axis=0).tolist()))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Moments:
        return cls(content["rows"], tuple(content["mean"]), tuple(content["squares"]))

    @property
    def deviation(self) -> tuple[float, ...]:
        """The standard deviation of each number; 1 if it is the same in all rows, so that one can divide by it."""
        found = np.sqrt(np.array(self.squares) / self.rows)
        return tuple(np.where(found > _ROUNDING * np.abs(self.mean), found, 1.0).tolist())

    def joined(self, other: Moments) -> Moments:
        """Moments of the rows of both.

        By Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979,
        equation 2.1: a difference of sums of squares would lose the digits of numbers far from zero.
        """
        rows = self.rows + other.rows
        apart = np.array(other.mean) - np.array(self.mean)
        mean = np.array(self.mean) + apart * (other.rows / rows)
        squares = np.array(self.squares) + np.array(other.squares) + apart**2 * (self.rows * other.rows / rows)
        return Moments(rows, tuple(mean.tolist()), tuple(squares.tolist()))


def joined_moments(parts: Iterable[Mapping[str, Moments]]) -> dict[str, Moments]:
    """The moments of all parts by name, joined in order; a part without rows has none."""
    found: dict[str, list[Moments]] = {}
    for part in parts:
        for name, moments in part.items():
            found.setdefault(name, []).append(moments)
    return {name: reduce(Moments.joined, several) for name, several in found.items()}

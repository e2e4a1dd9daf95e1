"""Whether two samples of rows differ by more than chance, where of one of them only its summary was kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch

from gpu_pipelines.evaluation.statistics.bootstrap import CONFIDENCE, Interval

#: Expected rows that each class must have for the chi-square distribution to hold.
#: Source: Cochran, Biometrics 10 (1954), https://doi.org/10.2307/3001616.
FEWEST_EXPECTED = 5.0
#: Rows of which NumPy draws no permutations.
_TOO_MANY = 1_000_000_000
#: Permutations of the test of shares, enough for a level of 0.01 of a thousand tests together; of so many classes that
#: they would take seconds, enough for one of 0.001.
_MOST_PERMUTATIONS, _FEWEST_PERMUTATIONS, _MOST_CELLS = 100_000, 10_000, 10_000_000
#: Permutations of a draw, and those at least as far apart as the samples from which on no more are drawn: their share
#: is the p-value.
_DRAWN_AT_ONCE, _ENOUGH = 500, 20


@dataclass(frozen=True)
class Estimate:
    """A metric of a sample: its value and the ends of its interval at the confidence that it is to be compared at."""

    value: float
    low: float
    high: float

    def less(self, other: Estimate) -> tuple[float, float]:
        """The interval of this metric less another, both of samples that know nothing of each other.

        The distances of the four ends from their values are combined as standard errors are, which needs neither the
        rows nor a symmetric interval: MOVER, Zou and Donner, Statistics in Medicine 27 (2008),
        https://doi.org/10.1002/sim.3095. For shares with Wilson's intervals it is Newcombe's method 10, Statistics in
        Medicine 17 (1998), 873–890.
        """
        difference = self.value - other.value
        low = difference - math.hypot(self.value - self.low, other.high - other.value)
        return low, difference + math.hypot(self.high - self.value, other.value - other.low)


def one_sided(level: float) -> float:
    """The quantile of the normal distribution beyond which a share `level` lies."""
    return NormalDist().inv_cdf(1 - level)


def share(right: int, rows: int, z: float) -> Estimate:
    """A share of rows with Wilson's interval, which is right for few rows and near 0 and 1 too.

    Source: Wilson, JASA 22 (1927), https://doi.org/10.1080/01621459.1927.10502953.

    Args:
        right: rows that count.
        rows: all of them, at least 1.
        z: quantile of the interval's ends.
    """
    value, square = right / rows, z * z / rows
    middle = (value + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(value * (1 - value) / rows + square / (4 * rows))
    return Estimate(value, min(value, middle - half), max(value, middle + half))


def falls_by_chance(before: tuple[int, int], now: tuple[int, int]) -> float:
    """The one-sided p-value of Fisher's exact test that a share of rows has not fallen; right for any number of rows.

    Source: Fisher, The Design of Experiments (1935), section 13.

    Args:
        before, now: rows that count, and all rows, of either sample.
    """
    rows, right, drawn = before[1] + now[1], before[0] + now[0], now[1]
    total = log_choose(rows, drawn)
    logs = (
        log_choose(right, found) + log_choose(rows - right, drawn - found) - total
        for found in range(max(0, drawn - (rows - right)), now[0] + 1)
    )
    return min(1.0, math.fsum(map(math.exp, logs)))


def log_choose(total: int, count: int) -> float:
    """The logarithm of the number of ways to choose so many of a total."""
    return math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)


def widened(metric: Interval, z: float) -> Estimate | None:
    """A metric with its 95% interval, at another confidence; the distances grow as those of a normal distribution do.

    Args:
        metric: as `evaluation.json` holds it.
        z: quantile of the ends wanted.

    Returns:
        None where value or interval are not known.
    """
    value, low, high = metric["value"], metric["low"], metric["high"]
    if value is None or low is None or high is None:
        return None
    factor = z / one_sided((1 - CONFIDENCE) / 2)
    return Estimate(value, value - factor * (value - low), value + factor * (high - value))


def same_shares(before: np.ndarray, now: np.ndarray) -> float:
    """The p-value of the chi-square test that two samples have the same shares of classes.

    By permutations where classes are rare, and then no less than one in as many as were drawn. A class with few rows
    of both samples may be most of the smaller one, so rare ones are not put together.

    Args:
        before: rows by class, int64 (classes,).
        now: the same of the other sample.
    """
    cells = np.stack([before, now])
    cells = cells[:, cells.any(axis=0)]
    if cells.shape[1] < 2 or not cells.any(axis=1).all():
        return 1.0
    expected = cells.sum(axis=1, keepdims=True) * (cells.sum(axis=0) / cells.sum())
    statistic = float(((cells - expected) ** 2 / expected).sum())
    if expected.min() < FEWEST_EXPECTED and cells.sum() < _TOO_MANY:
        return _share_beyond(statistic, cells.sum(axis=0), expected)
    half = torch.tensor([(cells.shape[1] - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _share_beyond(statistic: float, both: np.ndarray, expected: np.ndarray) -> float:
    """How often permutations of the rows are at least as far apart.

    Args:
        statistic: of the rows as they are.
        both: rows of both samples by class, int64 (classes,).
        expected: rows of each by class, were their shares the same, (2, classes).
    """
    random, rows, weights = np.random.default_rng(0), round(float(expected[1].sum())), (1 / expected).sum(axis=0)

    def count(permutations: int) -> int:
        permuted = random.multivariate_hypergeometric(both, rows, permutations, method="marginals")
        # What one sample has more of a class, the other has less. Equal tables need not have equal sums.
        return int(((permuted - expected[1]) ** 2 @ weights >= statistic * (1 - 1e-9)).sum())

    return share_of_permutations(count, min(_MOST_PERMUTATIONS, max(_FEWEST_PERMUTATIONS, _MOST_CELLS // len(both))))


def share_of_permutations(count: Callable[[int], int], most: int) -> float:
    """The p-value of a test by permutations, of which no more are drawn than it takes to tell it.

    The rows as they are count as one, so that it is never 0.

    Args:
        count: draws so many permutations, and says how many are at least as far apart as the samples.
        most: permutations, about.
    """
    beyond, drawn = 1, 1
    while beyond <= _ENOUGH and drawn < most:
        beyond += count(_DRAWN_AT_ONCE)
        drawn += _DRAWN_AT_ONCE
    return beyond / drawn


def effect_of_shares(before: np.ndarray, now: np.ndarray) -> float:
    """How far shares of classes are apart, whatever the number of rows: Cohen's w, against the mean of both shares.

    0.1 is a small effect, 0.3 a medium one; of two equal classes, 0.1 is a move from 50% to 55%. Source: Cohen,
    Statistical Power Analysis for the Behavioral Sciences (1988), section 7.2.
    """
    known = (before + now) > 0
    first, second = before[known] / before.sum(), now[known] / now.sum()
    return math.sqrt(float(((first - second) ** 2 / ((first + second) / 2)).sum()))

"""Tests whether two samples of rows differ: by how much, and how likely that is by chance.

All effects have the same unit, so that one floor fits all: the shift of a normal distribution, in standard deviations,
that differs as much.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.spatial.distance import cdist

from gpu_pipelines.evaluation.statistics.two_samples import FEWEST_EXPECTED, same_shares, share_of_permutations

#: Rows of each side in an energy test, which compares all pairs.
_MOST_POINTS = 1000
#: Permutations of an energy test, enough for a level of 0.01 over a hundred tests.
_MOST_PERMUTATIONS = 10_000
#: Tolerance between energies of the same rows in another order, as a share of the distance between the samples.
_ROUNDING = 1e-6
#: Limit of a point's distance in a direction, in median deviations from the median: ten normal standard deviations.
_FARTHEST = 15


class Difference(NamedTuple):
    """The difference of two samples.

    Attributes:
        test: the test.
        statistic: its value.
        p_value: how often chance alone would differ as much.
        effect: the shift of a normal distribution, in standard deviations.
    """

    test: str
    statistic: float
    p_value: float
    effect: float


NONE = Difference("none", 0.0, 1.0, 0.0)


def numbers_differ(before: np.ndarray, now: np.ndarray) -> Difference:
    """Tests whether numbers differ, with Kolmogorov and Smirnov's test of the distributions and Mann and Whitney's test
    of their location, which finds small shifts with fewer rows.

    The p-value is twice the smaller one (Bonferroni). The effect comes from the statistic of the first test: the shift
    of a normal distribution whose cumulative shares are as far apart.

    Args:
        before, now: finite numbers, any count of each.
    """
    if not len(before) or not len(now) or (np.ptp(before) == 0 and np.ptp(now) == 0 and before[0] == now[0]):
        return NONE
    whole = stats.ks_2samp(before, now, method="asymp")
    p_value = min(1.0, 2 * min(float(whole.pvalue), _moved(before, now)))
    return Difference("KS and Mann–Whitney", float(whole.statistic), p_value, shift_of(float(whole.statistic)))


def _moved(before: np.ndarray, now: np.ndarray) -> float:
    """The p-value of Mann and Whitney's test. If few rows differ from the most common number, the p-value of a test of
    their count: the sum of so few ranks is far from normal."""
    values, rows = np.unique(np.concatenate([before, now]), return_counts=True)
    usual = values[rows.argmax()]
    cells = np.array([[np.sum(sample == usual), np.sum(sample != usual)] for sample in (before, now)])
    if cells[:, 1].sum() * cells.sum(axis=1).min() < FEWEST_EXPECTED * cells.sum():
        return same_shares(*cells)
    return float(stats.mannwhitneyu(before, now, method="asymptotic").pvalue)


def shift_of(distance: float) -> float:
    """The shift of a normal distribution, in standard deviations, with this distance of the cumulative shares."""
    return 2 * float(stats.norm.ppf((1 + min(distance, 1 - 1e-9)) / 2))


def shares_differ(before: np.ndarray, now: np.ndarray) -> Difference:
    """Tests whether the shares of categories differ: the chi-square test, with permutations if categories are rare.

    The effect is the distance of the shares in standard deviations: for two categories the difference of a share
    divided by the square root of p (1 - p), for samples of equal size twice Cohen's w; less what chance adds to it.

    Source: Cohen, Statistical Power Analysis for the Behavioral Sciences (1988), sections 2.2 and 7.2.

    Args:
        before, now: rows by category, the same categories in the same order.
    """
    cells = np.stack([before, now]).astype(np.int64)
    cells = cells[:, cells.any(axis=0)]
    if cells.shape[1] < 2 or not cells.any(axis=1).all():
        return NONE
    statistic, _, freedom, _ = stats.chi2_contingency(cells, correction=False)
    rows = cells.sum(axis=1)
    harmonic = rows[0] * rows[1] / rows.sum()
    effect = math.sqrt(max(0.0, float(statistic) - freedom) / harmonic)
    return Difference("chi-square", float(statistic), same_shares(*cells), effect)


def lacking_differ(before: tuple[int, int], now: tuple[int, int]) -> Difference:
    """Tests whether more rows lack something than before: Fisher's exact test, which also suits a handful of rows.

    Args:
        before, now: rows that lack it, and rows in all.
    """
    cells = np.array([[lacking, rows - lacking] for lacking, rows in (before, now)], dtype=np.float64)
    if not cells.sum(axis=1).all() or not cells[:, 0].sum():
        return NONE
    p_value = float(stats.fisher_exact(cells[::-1], alternative="greater").pvalue)
    shares = cells[:, 0] / cells.sum(axis=1)
    more = float(shares[1] - shares[0])
    share = float(cells[:, 0].sum() / cells.sum())
    deviation = math.sqrt(share * (1 - share)) or 1.0
    return Difference("Fisher", more, p_value, max(0.0, more) / deviation)


def points_differ(before: np.ndarray, now: np.ndarray, seed: int = 0) -> Difference:
    """Tests whether points of a space differ: the energy test of Székely and Rizzo, with permutations.

    Each direction is measured in its own standard deviations, and points farther away than ten of them are moved to
    ten: otherwise a single row in another unit would be farther from the others than they are from each other, and hide
        them.
    The effect is that of a shift in all directions: for a shift of d standard deviations in each, the energy distance
    is d² / 4 of the distance of two points.

    Source: Székely and Rizzo, Journal of Statistical Planning and Inference 143 (2013),
    https://doi.org/10.1016/j.jspi.2013.03.018.

    Args:
        before, now: (rows, directions).
        seed: the seed of the sample of rows and of the permutations.
    """
    random = np.random.default_rng(seed)
    before, now = (_some(points, random) for points in (before, now))
    if min(len(before), len(now)) < 2:
        return NONE
    points = _drawn_in(np.concatenate([before, now]).astype(np.float64))
    spread = points.std(axis=0)
    points = points[:, spread > 0] / spread[spread > 0]
    if not points.shape[1]:
        return NONE
    distances = cdist(points, points).astype(np.float32)
    own = np.zeros((len(points), 1), dtype=np.float32)
    own[: len(before)] = 1
    (found,), between = _energies(distances, own, len(before), len(now))

    def count(permutations: int) -> int:
        permuted = random.permuted(np.repeat(own, permutations, axis=1), axis=0)
        energies, _ = _energies(distances, permuted, len(before), len(now))
        return int((energies >= found - _ROUNDING * between).sum())

    effect = 2 * math.sqrt(max(0.0, float(found)) / (2 * between))
    return Difference("energy", float(found), share_of_permutations(count, _MOST_PERMUTATIONS), effect)


def _energies(distances: np.ndarray, first: np.ndarray, before: int, now: int) -> tuple[np.ndarray, float]:
    """The unbiased energy distance for each column of `first`, which marks the rows of the first sample; and the mean
    distance between the samples for the first column."""
    within = np.einsum("ij,ij->j", first, distances @ first, dtype=np.float64)
    from_first = first.T.astype(np.float64) @ distances.sum(axis=1, dtype=np.float64)
    across = from_first - within
    other = float(distances.sum(dtype=np.float64)) - 2 * across - within
    between = across / (before * now)
    return 2 * between - within / (before * (before - 1)) - other / (now * (now - 1)), float(between[0])


def _some(points: np.ndarray, random: np.random.Generator) -> np.ndarray:
    points = points[np.isfinite(points).all(axis=1)]
    return points if len(points) <= _MOST_POINTS else points[random.choice(len(points), _MOST_POINTS, replace=False)]


def _drawn_in(points: np.ndarray) -> np.ndarray:
    """Points without extremes in any direction; a direction in which most points are equal stays as it is."""
    middle = np.median(points, axis=0)
    reach = _FARTHEST * np.median(np.abs(points - middle), axis=0)
    return np.where(reach > 0, np.clip(points, middle - reach, middle + reach), points)


def corrected(p_values: list[float]) -> list[float]:
    """Holm's correction: at a level for the corrected p-values, at most that share of checks reports anything that has
    not moved, however the tests depend on each other.

    Source: Holm, Scandinavian Journal of Statistics 6 (1979), https://www.jstor.org/stable/4615733.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    found, largest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, p_values[place] * (len(p_values) - rank)))
        found[place] = largest
    return found

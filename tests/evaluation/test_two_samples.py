"""Tests of two samples of which one is known by its summary: their formulas, and how often they are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from gpu_pipelines.evaluation.statistics.two_samples import (
    Estimate,
    effect_of_shares,
    falls_by_chance,
    one_sided,
    same_shares,
    share,
    widened,
)


@pytest.mark.parametrize(("right", "rows"), [(0, 7), (7, 7), (31, 113), (9_700_000, 10_000_000)])
@pytest.mark.parametrize("level", [0.025, 0.0005])
def test_the_interval_of_a_share_is_wilsons(right: int, rows: int, level: float) -> None:
    found = share(right, rows, one_sided(level))
    wanted = stats.binomtest(right, rows).proportion_ci(1 - 2 * level, method="wilson")
    assert (found.low, found.high) == (pytest.approx(wanted.low, abs=1e-12), pytest.approx(wanted.high, abs=1e-12))


def test_the_interval_of_a_difference_of_shares_is_newcombes() -> None:
    # Newcombe (1998), table II, method 10: (a) 56/70 - 48/80, (e) 5/56 - 0/29.
    z = one_sided(0.025)
    low, high = share(56, 70, z).less(share(48, 80, z))
    assert (low, high) == (pytest.approx(0.0524, abs=5e-5), pytest.approx(0.3339, abs=5e-5))
    low, high = share(5, 56, z).less(share(0, 29, z))
    assert (low, high) == (pytest.approx(-0.0381, abs=5e-5), pytest.approx(0.1926, abs=5e-5))


def test_a_recorded_interval_is_widened_as_that_of_a_normal_distribution() -> None:
    found = widened({"value": 2.0, "low": 1.9, "high": 2.2}, 2 * one_sided(0.025))
    assert found == Estimate(2.0, pytest.approx(1.8), pytest.approx(2.4))
    assert widened({"value": 2.0, "low": None, "high": None}, 3.0) is None
    assert widened({"value": None, "low": None, "high": None}, 3.0) is None


@pytest.mark.parametrize(
    ("before", "now"), [([50, 50], [60, 40]), ([1000, 30, 400], [900, 90, 380]), ([7_000_000, 10_000], [700_000, 900])]
)
def test_the_test_of_shares_is_the_chi_square_test(before: list[int], now: list[int]) -> None:
    wanted = stats.chi2_contingency([before, now], correction=False).pvalue
    assert same_shares(np.array(before), np.array(now)) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.slow
def test_rare_classes_move_by_chance_as_often_as_the_level_says() -> None:
    # A long tail: 300 classes of about a row each, most of which are in one of the samples alone.
    generator = np.random.default_rng(0)
    shares = np.array([0.3, 0.3, *[0.4 / 300] * 300])
    found = [same_shares(*generator.multinomial([900, 600], shares)) for _ in range(100)]
    assert np.mean(np.array(found) < 0.05) == pytest.approx(0.05, abs=0.045)
    assert same_shares(np.array([0, 0]), np.array([10, 3])) == 1.0


@pytest.mark.parametrize(("before", "now"), [([3, 0], [0, 3]), ([40, 2], [3, 2]), ([5000, 50], [95, 5])])
def test_the_test_of_rare_classes_is_about_fishers(before: list[int], now: list[int]) -> None:
    assert same_shares(np.array(before), np.array(now)) == pytest.approx(stats.fisher_exact([before, now])[1], rel=0.5)


@pytest.mark.parametrize(
    ("before", "now"),
    [((380, 400), (15, 20)), ((40, 40), (30, 40)), ((3, 9), (9, 9)), ((5, 5), (0, 3)), ((990_000, 10**6), (98, 100))],
)
def test_the_test_of_a_fall_is_fishers(before: tuple[int, int], now: tuple[int, int]) -> None:
    cells = [[right, rows - right] for right, rows in (before, now)]
    exact = stats.fisher_exact(cells, alternative="greater").pvalue
    assert falls_by_chance(before, now) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("before", "now"), [([9900, 100], [160, 40]), ([5000, 0, 5000], [90, 20, 90])])
def test_a_rare_class_that_is_much_of_a_small_sample_is_found(before: list[int], now: list[int]) -> None:
    assert same_shares(np.array(before), np.array(now)) < 0.001


def test_the_effect_does_not_depend_on_the_number_of_rows() -> None:
    assert effect_of_shares(np.array([50, 50]), np.array([55, 45])) == pytest.approx(0.1, abs=0.001)
    assert effect_of_shares(np.array([50, 50]), np.array([550_000, 450_000])) == pytest.approx(0.1, abs=0.001)
    # One class in a hundred that becomes one in twenty is more than five points between two halves.
    assert effect_of_shares(np.array([99, 1]), np.array([95, 5])) > 0.2
    assert effect_of_shares(np.array([10, 0, 0]), np.array([0, 10, 0])) == 2.0


@pytest.mark.parametrize("probability", [0.6, 0.9, 0.99])
@pytest.mark.parametrize("rows", [(30, 30), (113, 150), (2000, 500)])
def test_two_samples_of_one_kind_differ_as_often_as_the_level_says(rows: tuple[int, int], probability: float) -> None:
    # At a level that shows in so few draws; exact, by the binomial distribution of both.
    z = one_sided(0.025)
    weights = [stats.binom.pmf(np.arange(count + 1), count, probability) for count in rows]
    kept = [np.flatnonzero(weight > 1e-9) for weight in weights]
    ends = [[share(int(right), count, z) for right in some] for count, some in zip(rows, kept, strict=True)]
    wrong = math.fsum(
        weights[0][a] * weights[1][b]
        for a, first in zip(kept[0], ends[0], strict=True)
        for b, second in zip(kept[1], ends[1], strict=True)
        if first.less(second)[0] > 0
    )
    assert wrong < 0.04

"""The two-sample tests: their errors, the unit of their effects, and the correction for their number."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gpu_pipelines.drift.comparison import compared
from gpu_pipelines.drift.two_samples import (
    corrected,
    lacking_differ,
    numbers_differ,
    points_differ,
    shares_differ,
    shift_of,
)
from gpu_pipelines.profiles.values import Categories, Numbers, as_codes


def normal(rows: int, seed: int, directions: int = 0) -> np.ndarray:
    shape = (rows, directions) if directions else rows
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_p_values_are_not_too_small_without_a_difference() -> None:
    numbers = [numbers_differ(normal(400, 2 * n), normal(300, 2 * n + 1)).p_value for n in range(150)]
    points = [points_differ(normal(90, 2 * n, 4), normal(60, 2 * n + 1, 4), n).p_value for n in range(60)]
    shares = [
        shares_differ(*(np.random.default_rng(2 * n + m).multinomial(500, [0.6, 0.3, 0.1]) for m in (0, 1))).p_value
        for n in range(300)
    ]
    for found in (numbers, points, shares):
        below = int(np.sum(np.array(found) < 0.05))
        assert stats.binomtest(below, len(found), 0.05, alternative="greater").pvalue > 0.001


@pytest.mark.slow_but_for("0.5")
@pytest.mark.parametrize("shift", [0.2, 0.5])
def test_effects_are_in_standard_deviations_of_a_normal_distribution(shift: float) -> None:
    assert numbers_differ(normal(20_000, 1), normal(20_000, 2) + shift).effect == pytest.approx(shift, abs=0.05)
    assert points_differ(normal(1000, 1, 8), normal(1000, 2, 8) + shift).effect == pytest.approx(shift, rel=0.15)
    # Half of the rows above the middle, and the share that a shift makes of it.
    above = [
        np.array([np.sum(values > 0), np.sum(values <= 0)]) for values in (normal(9000, 1), normal(9000, 2) + shift)
    ]
    assert shares_differ(*above).effect == pytest.approx(shift, rel=0.25)
    assert shift_of(2 * stats.norm.cdf(shift / 2) - 1) == pytest.approx(shift)


def test_a_change_of_the_spread_alone_is_found() -> None:
    found = numbers_differ(normal(3000, 1), 1.5 * normal(1000, 2))
    assert found.p_value < 1e-4
    assert found.effect > 0.1


@pytest.mark.parametrize("value", [1e4, 1e30])
def test_one_row_of_another_unit_does_not_hide_that_the_others_have_moved(value: float) -> None:
    before, now = normal(100, 1, 8), normal(300, 2, 8) + 0.5
    found = points_differ(before, np.concatenate([now, np.full((1, 8), value)]))
    assert found.p_value < 0.001
    assert found.effect == pytest.approx(points_differ(before, now).effect, rel=0.2)
    # Nor is it a movement of the others where they have not moved.
    assert points_differ(before, np.concatenate([normal(300, 3, 8), np.full((1, 8), value)])).p_value > 0.01


def test_a_rare_cluster_is_as_rare_as_permutations_say() -> None:
    """A curve through a few hundred of them told a hundredth of it and less."""
    now = normal(100, 9, 8)
    now[:5] += 30
    chance = stats.hypergeom(400, 5, 100).pmf(5)  # that all five are among the new rows
    assert chance / 3 < points_differ(normal(300, 8, 8), now).p_value < 3 * chance


def test_one_shifted_direction_of_many_points_is_found() -> None:
    moved = normal(1000, 2, 16)
    moved[:, 0] += 0.5
    assert points_differ(normal(1000, 1, 16), moved).p_value < 0.001


def test_rare_and_new_categories() -> None:
    assert shares_differ(np.array([500, 499, 1]), np.array([500, 499, 1])).p_value == 1
    assert shares_differ(np.array([500, 500, 0]), np.array([450, 450, 100])).p_value < 1e-9
    assert shares_differ(np.array([1000]), np.array([1000])).effect == 0
    assert shares_differ(np.array([1000, 0]), np.array([0, 0])).p_value == 1


@pytest.mark.parametrize(
    ("before", "now"),
    [([5000, 0], [0, 100]), ([5000, 0], [60, 40]), ([4900, 100, 0], [39, 1, 60]), ([500, 500, 0], [40, 40, 20])],
)
def test_a_new_category_is_found_in_a_sample_that_is_small_beside_the_training_data(
    before: list[int], now: list[int]
) -> None:
    found = shares_differ(np.array(before), np.array(now))
    # Corrected for hundreds of columns it still is below 0.01.
    assert found.p_value < 1e-4 / 3
    assert found.effect > 0.5


@pytest.mark.parametrize("shares", [[0.98, 0.02], [0.7, 0.2, 0.05, 0.03, 0.01, 0.005, 0.003, 0.002]])
def test_p_values_of_rare_categories_are_not_too_small_without_a_difference(shares: list[float]) -> None:
    random = np.random.default_rng(1)
    found = [shares_differ(*random.multinomial([5000, 100], shares)).p_value for _ in range(800)]
    for level in (0.05, 0.01):
        below = int(np.sum(np.array(found) < level))
        assert stats.binomtest(below, len(found), level, alternative="greater").pvalue > 0.001


@pytest.mark.parametrize(("before", "now"), [([331, 3], [6, 2]), ([340, 0], [12, 2]), ([272, 0], [8, 2])])
def test_what_a_rare_category_does_by_chance_is_not_told_to_be_a_thousand_times_rarer(
    before: list[int], now: list[int]
) -> None:
    """Corrected for a hundred columns, it would be an alarm."""
    exact = stats.fisher_exact([before, now]).pvalue
    assert shares_differ(np.array(before), np.array(now)).p_value == pytest.approx(exact, rel=0.3)


@pytest.mark.parametrize("other", [5, 6, 8])
def test_what_a_column_of_nearly_all_zeros_does_by_chance_is_not_told_to_be_a_thousand_times_rarer(other: int) -> None:
    """The sum of the ranks of a handful of rows is far from normal."""
    before, now = np.zeros(5000), np.zeros(100)
    before[:50], now[:other] = np.arange(1, 51), np.arange(1, 51, 6)[:other]
    exact = stats.fisher_exact([[50, 4950], [other, 100 - other]]).pvalue
    assert exact < numbers_differ(before, now).p_value < 4 * exact
    many = np.concatenate([np.zeros(70), np.arange(1, 31)])
    assert numbers_differ(before, many).p_value < 1e-4


def test_more_missing_values_are_found_and_fewer_are_none_of_our_business() -> None:
    more = lacking_differ((0, 5000), (10, 1000))
    assert more.p_value < 1e-5
    assert more.effect > 0.1
    fewer = lacking_differ((50, 1000), (0, 1000))
    assert fewer.p_value > 0.5
    assert fewer.effect == 0
    assert lacking_differ((0, 10), (0, 10)).p_value == 1


def test_constants_and_nothing() -> None:
    assert numbers_differ(np.ones(5), np.ones(9)).p_value == 1
    assert numbers_differ(np.ones(500), np.zeros(500)).p_value < 1e-9
    assert numbers_differ(np.ones(0), np.ones(9)).p_value == 1
    assert points_differ(np.ones((50, 2)), np.ones((50, 2))).p_value == 1


def test_holm() -> None:
    # Worked by hand: 4 × 0.01, 3 × 0.02, 2 × 0.03 is the same, 1 × 0.5.
    assert corrected([0.5, 0.01, 0.03, 0.02]) == pytest.approx([0.5, 0.04, 0.06, 0.06])
    assert corrected([0.9, 0.9]) == [1.0, 1.0]
    assert corrected([]) == []


def test_an_alarm_takes_both_a_small_p_value_and_an_effect() -> None:
    before = {"inputs": {"a": Numbers(normal(100_000, 1)), "b": Numbers(normal(5000, 3))}}
    now = {"inputs": {"a": Numbers(normal(100_000, 2) + 0.05), "b": Numbers(normal(30, 4) + 0.3)}}
    sure, unsure = sorted(compared(before, now, {}, 0.01, 0.1), key=lambda each: each.name)
    assert sure.p_corrected < 1e-9
    assert sure.effect < 0.1
    assert not sure.drifted
    assert unsure.p_corrected > 0.01
    assert unsure.effect > 0.1
    assert not unsure.drifted
    assert [each.drifted for each in compared(before, now, {}, 0.01, 0.01)] == [True, False]


def test_codes_are_compared_as_names_and_missing_numbers_counted() -> None:
    before = {"inputs": {"code": Categories(["0", "1"] * 500), "gap": Numbers(normal(1000, 1))}}
    gaps = normal(1000, 2)
    gaps[:100] = np.nan
    now = {"inputs": {"code": Numbers.of([0.0, 0.0, 1.0, 2.0] * 250), "gap": Numbers(gaps), "new": Numbers(gaps)}}
    found = {each.name: each for each in compared(before, now, {}, 0.01, 0.1)}
    assert found.keys() == {"code", "gap", "gap is missing"}
    assert found["code"].drifted
    assert found["gap is missing"].drifted
    assert not found["gap"].drifted
    assert found["code"].shares["names"][:3] == ["0", "1", "2"]


def test_codes_of_many_digits_are_told_apart() -> None:
    names = as_codes(Numbers.of([1_000_001, 1_000_002, 20_240_102, 1 / 3, 0.1, 1e-7, 3, -0.0, 0.0, None]))
    assert names == Categories(["1000001", "1000002", "20240102", "0.333333343", "0.1", "1e-07", "3", "0", "0", None])
    before, now = (as_codes(Numbers.of(codes)) for codes in ([1_000_001.0, 1_000_002.0] * 500, [1_000_002.0] * 500))
    (found,) = compared({"inputs": {"branch": before}}, {"inputs": {"branch": now}}, {}, 0.01, 0.1)
    assert found.drifted

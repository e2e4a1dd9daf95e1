"""The gate `better_than_champion`: how often it promotes what is no better, and what is."""

from __future__ import annotations

import math
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from scipy import stats

from gpu_pipelines.evaluation.champion.comparison import Comparison, Incomparable, sign_test
from gpu_pipelines.evaluation.champion.promotion import better, better_by_value
from gpu_pipelines.evaluation.gates import ChampionGate, GateResult
from gpu_pipelines.evaluation.metrics.classification import ClassificationScores
from gpu_pipelines.evaluation.metrics.loss import LikelihoodScores
from gpu_pipelines.evaluation.settings import Ranking
from gpu_pipelines.tasks.preference.scoring import PreferenceScores

PAIRS = 200
AT_95 = ChampionGate(confidence=0.95)
RANKINGS = {"accuracy": Ranking("accuracy", True), "log_loss": Ranking("log_loss", False)}


@cache
def classifiers(seed: int, rows: int, gain: float = 0.0) -> Comparison:
    """Two classifiers of two classes, right in 80% of the rows, mostly the same ones; ours gains some of the others."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, rows)
    hardness = generator.random(rows)
    found = []
    for more in (gain, 0.0):
        right = np.where(generator.random(rows) < 0.3, generator.random(rows), hardness) < 0.8 + more
        sure = generator.uniform(0.55, 0.95, rows).astype(np.float32)
        probabilities = np.where(right, sure, 1 - sure)
        columns = np.stack([np.where(labels == 0, probabilities, 1 - probabilities)] * 2, axis=1)
        columns[:, 1] = 1 - columns[:, 0]
        found.append(ClassificationScores.of(columns, labels, 2))
    return Comparison(found[0], found[1], 1)


def texts(seed: int, rows: int, gain: float = 0.0) -> Comparison:
    """Two language models whose losses on a text are alike; ours is lower by `gain` nats for each token."""
    generator = np.random.default_rng(seed)
    loss_tokens = generator.integers(20, 200, rows)
    hardness = generator.gamma(20.0, 0.15, rows)
    sums = [
        np.stack(
            [loss_tokens * (hardness + generator.normal(0, 0.2, rows) - less), loss_tokens, loss_tokens * 0.4], axis=1
        )
        for less in (gain, 0.0)
    ]
    return Comparison(LikelihoodScores.of(sums[0]), LikelihoodScores.of(sums[1]), 1)


def promoted(make: Any, metric: str, rows: int, gain: float = 0.0) -> int:
    ranking = RANKINGS.get(metric, Ranking(metric, False))
    found = [better(AT_95, pair.ours, pair, ranking) for pair in (make(seed, rows, gain) for seed in range(PAIRS))]
    return sum(result.passed for result in found)


# Of 200 equals 2.5% are promoted by chance, 5; more than 12 would be seen once in 300 times.
MOST = 12


@pytest.mark.parametrize(
    ("make", "metric", "rows"),
    [
        (classifiers, "accuracy", 300),
        (classifiers, "accuracy", 30),
        (classifiers, "log_loss", 300),
        (texts, "loss", 150),
    ],
)
def test_of_equally_good_models_hardly_any_is_promoted(make: Any, metric: str, rows: int) -> None:
    assert promoted(make, metric, rows) <= MOST


@pytest.mark.parametrize(("make", "metric", "rows"), [(classifiers, "accuracy", 200), (texts, "loss", 150)])
def test_a_model_that_is_better_by_twice_the_interval_is_promoted_nearly_always(
    make: Any, metric: str, rows: int
) -> None:
    ends = make(10**6, rows).ends(metric, 0.95)
    assert ends is not None
    # From the estimate to either end of the interval is half of it.
    gain = 2 * (ends[1] - ends[0]) / 2
    assert promoted(make, metric, rows, gain) >= 0.95 * PAIRS


def result(gate: ChampionGate, pair: Comparison, metric: str = "accuracy") -> GateResult:
    return better(gate, pair.ours, pair, RANKINGS[metric])


def of(right: list[bool]) -> ClassificationScores:
    labels = np.zeros(len(right), dtype=np.int64)
    return ClassificationScores.of(np.eye(2, dtype=np.float32)[np.where(right, 0, 1)], labels, 2)


def test_a_few_rows_are_not_enough_however_one_sided_they_are() -> None:
    # The interval of four rows gained and none lost does not hold 0; by a coin one of two models wins so in 1 of 8.
    pair = Comparison(of([True] * 100), of([False] * 4 + [True] * 96), 1)
    found = result(AT_95, pair)
    assert found.low is not None
    assert found.low > 0
    assert not found.passed
    assert (
        "differ in too few rows (4 that this one alone gets right, 0 the champion; McNemar's p is 0.125)" in found.why
    )
    assert result(AT_95, Comparison(of([True] * 100), of([False] * 8 + [True] * 92), 1)).passed


def test_mcnemar_decides_about_preferences_and_completions_too() -> None:
    right = np.ones(100)
    theirs = np.where(np.arange(100) < 4, 0.0, right)
    both = (right, theirs)
    nothing = np.zeros(100)
    preferences = Comparison(
        *(PreferenceScores(np.column_stack([each, each, each, nothing + 1, each, nothing])) for each in both), 1
    )
    completions = Comparison(
        *(LikelihoodScores.of(np.column_stack([each, 5 * right, 4 + each]), completions=True) for each in both), 1
    )
    for metric, pair in (("accuracy", preferences), ("completion_accuracy", completions)):
        found = better(AT_95, pair.ours, pair, Ranking(metric, True))
        assert found.low is not None
        assert found.low > 0
        assert not found.passed
        assert "4 that this one alone gets right, 0 the champion; McNemar's p is 0.125" in found.why
    assert preferences.summary()["mcnemar"]["p_value"] == 0.125
    assert "mcnemar" not in completions.summary()


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_so_few_texts_say_nothing_though_the_loss_of_each_is_lower(rows: int) -> None:
    # By a coin one of two models has the lower loss on each of five texts in 1 of 16.
    pair = texts(0, rows, gain=5.0)
    assert all(ours < theirs for ours, theirs in zip(pair.ours.sums[:, 0], pair.theirs.sums[:, 0], strict=True))
    ranking = Ranking("loss", False)
    found = better(AT_95, pair.ours, pair, ranking)
    assert not found.passed
    assert found.why.endswith(f"on the same {rows} test rows: a 95% interval takes 6 test rows")
    by_value = better_by_value(pair.ours, pair, ranking)
    assert by_value.passed
    assert "beyond chance" not in by_value.why
    assert pair.summary()["differences"]["loss"]["low"] is None
    assert pair.ours.intervals()["loss"]["high"] is None


def test_six_texts_whose_losses_are_all_lower_say_something() -> None:
    pair = texts(0, 6, gain=5.0)
    assert better(AT_95, pair.ours, pair, Ranking("loss", False)).passed
    assert not better(ChampionGate(confidence=0.99), pair.ours, pair, Ranking("loss", False)).passed


def test_a_margin_must_be_exceeded_by_the_difference_or_by_its_interval() -> None:
    pair = Comparison(of([True] * 950 + [False] * 50), of([True] * 900 + [False] * 100), 1)
    assert result(ChampionGate(margin=0.049), pair).passed
    assert not result(ChampionGate(margin=0.051), pair).passed
    assert not result(ChampionGate(margin=0.049, confidence=0.95), pair).passed
    found = result(ChampionGate(margin=0.03, confidence=0.95), pair)
    assert found.passed
    assert (found.value, found.threshold) == (pytest.approx(0.05), 0.03)
    # The normal approximation: the standard error of 50 rows gained of 1,000.
    error = math.sqrt(0.05 * 0.95 / 1000)
    assert found.low == pytest.approx(0.05 - 1.96 * error, abs=0.002)
    assert found.high == pytest.approx(0.05 + 1.96 * error, abs=0.002)


@pytest.mark.parametrize("right", range(100, 200, 9))
def test_as_much_better_as_the_margin_is_not_more_than_it(right: int) -> None:
    pair = Comparison(
        of([True] * (right + 1) + [False] * (199 - right)), of([True] * right + [False] * (200 - right)), 1
    )
    found = result(ChampionGate(margin=0.005), pair)
    assert (found.passed, found.value) == (False, 0.005)
    assert "better by 0.0050, wanted more than 0.005" in found.why
    assert result(ChampionGate(margin=0.00499), pair).passed


def test_the_same_errors_in_other_classes_are_no_better_though_sums_in_another_order_differ() -> None:
    labels = np.repeat([0, 1, 2], 5)
    predicted = np.array([0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 2, 2, 1, 2, 2])
    ranking = Ranking("macro_f1", True)
    for order in permutations(range(3)):
        turned = np.array(order)
        ours, theirs = (
            ClassificationScores.of(np.eye(3, dtype=np.float32)[each], of_rows, 3)
            for each, of_rows in ((turned[predicted], turned[labels]), (predicted, labels))
        )
        for pair in (Comparison(ours, theirs, 1), Comparison(theirs, ours, 1)):
            for found in (better_by_value(pair.ours, pair, ranking), better(ChampionGate(), pair.ours, pair, ranking)):
                assert not found.passed, found.why
                assert "macro_f1 is 0.7407, version 1 has 0.7407 on" in found.why


def test_equals_are_not_better_and_less_loss_is_better() -> None:
    pair = Comparison(of([True, False]), of([False, True]), 1)
    assert not better_by_value(pair.ours, pair, RANKINGS["accuracy"]).passed
    assert not result(ChampionGate(), pair).passed
    worse = classifiers(0, 200, gain=-0.2)
    found = better_by_value(worse.ours, worse, RANKINGS["log_loss"])
    assert not found.passed
    assert "worse by" in found.why
    assert "beyond chance (95% interval of the improvement -" in found.why
    assert not result(AT_95, worse, "log_loss").passed
    turned = Comparison(worse.theirs, worse.ours, 1)
    assert result(AT_95, turned, "log_loss").passed
    assert better_by_value(turned.ours, turned, RANKINGS["log_loss"]).passed


def test_a_model_beside_itself_is_better_by_no_less_than_nothing() -> None:
    same = texts(0, 40).ours
    ranking = Ranking("loss", False)
    for result in (
        better(AT_95, same, Comparison(same, same, 1), ranking),
        better_by_value(same, Comparison(same, same, 1), ranking),
    ):
        assert "interval of the improvement 0.0000 to 0.0000" in result.why


def test_without_a_champion_to_compare_with_the_gate_passes_and_without_a_number_of_ours_it_fails() -> None:
    ours = LikelihoodScores.of(np.array([[1e9, 1, 0]] * 3))
    good = LikelihoodScores.of(np.array([[1.0, 1, 0]] * 3))
    ranking = Ranking("perplexity", False)
    assert better(AT_95, good, None, ranking).passed
    assert not better(AT_95, ours, None, ranking).passed
    assert better(AT_95, good, Comparison(good, ours, 1), ranking).passed
    assert not better(AT_95, ours, Comparison(ours, good, 1), ranking).passed


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (4, 0), (3, 9), (12, 30), (500, 400), (7, 7), (2000, 100)])
def test_mcnemars_exact_test_is_the_binomial_test(wins: int, losses: int) -> None:
    wanted = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert sign_test(wins, losses) == pytest.approx(wanted, rel=1e-6)


def turned(pair: Comparison) -> Comparison:
    return Comparison(pair.theirs, pair.ours, 1)


def test_the_default_gate_keeps_what_is_worse_away_and_says_what_may_be_chance() -> None:
    passed = []
    for seed in range(PAIRS // 2):
        pair = classifiers(seed, 300)
        found = better_by_value(pair.ours, pair, RANKINGS["accuracy"])
        passed.append(found.passed)
        assert found.passed == (pair.difference("accuracy") > 0)
        proven = better(
            AT_95, *((pair.ours, pair) if found.passed else (pair.theirs, turned(pair))), RANKINGS["accuracy"]
        )
        assert ("which may be chance" in found.why) == (not proven.passed and pair.difference("accuracy") != 0)
    # What docs/evaluation.md says of equals: about every second one, but for ties.
    assert 0.35 < np.mean(passed) < 0.6
    far = Comparison(classifiers(7, 300, gain=0.2).ours, classifiers(7, 300).theirs, 1)
    assert "better by" in (why := better_by_value(far.ours, far, RANKINGS["accuracy"]).why)
    assert ", beyond chance" in why
    unknown = Incomparable(4, "its recipe is gone")
    assert not better_by_value(far.ours, unknown, RANKINGS["accuracy"]).passed
    assert "its recipe is gone" in better(ChampionGate(), far.ours, unknown, RANKINGS["accuracy"]).why


def test_differences_are_of_pairs() -> None:
    pair = classifiers(3, 500)
    summary = pair.summary()
    ours, theirs = pair.ours.intervals()["accuracy"], summary["metrics"]["accuracy"]
    difference = summary["differences"]["accuracy"]
    assert difference["value"] == pytest.approx(ours["value"] - theirs["value"])  # type: ignore[operator]
    alone = (ours["high"] - ours["low"]) ** 2 + (theirs["high"] - theirs["low"]) ** 2  # type: ignore[operator]
    assert difference["high"] - difference["low"] < 0.8 * math.sqrt(alone), "the models are right in the same rows"
    right = [pair.ours.right, pair.theirs.right]  # type: ignore[attr-defined]
    assert summary["mcnemar"]["this_model_alone_right"] == int((right[0] & ~right[1]).sum())

"""Each metric is scikit-learn's, and its interval is what resampling the rows one by one would give."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from gpu_pipelines.evaluation.metrics.classification import ClassificationScores
from gpu_pipelines.tasks.classification.scoring import by_label
from gpu_pipelines.tasks.tasks import TASKS

NAMES = ("accuracy", "macro_f1", "macro_recall", "min_recall", "roc_auc", "ece", "log_loss")


def problem(
    seed: int, rows: int = 300, classes: int = 4, *, skill: float = 1.5, other: bool = False, missing: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (float32, as a model gives them) and labels; the last `missing` classes have no rows."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes - missing, rows).astype(np.int32)
    logits = generator.normal(0, 1, (rows, classes + other))
    logits[np.arange(rows), labels] += skill
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return probabilities.astype(np.float32), labels


def expected_calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Equation 3 of https://arxiv.org/abs/1706.04599, row by row."""
    error = 0.0
    for number in range(15):
        chosen = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        if chosen.any():
            error += abs(right[chosen].mean() - confidence[chosen].mean()) * chosen.mean()
    return error


def by_scikit_learn(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    predicted = probabilities.argmax(axis=1)
    present = np.unique(labels)
    options: dict[str, Any] = {"labels": present, "zero_division": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "accuracy": sk.accuracy_score(labels, predicted),
            "macro_f1": sk.f1_score(labels, predicted, average="macro", **options),
            "macro_recall": sk.recall_score(labels, predicted, average="macro", **options),
            "min_recall": sk.recall_score(labels, predicted, average=None, **options).min(),
            "roc_auc": np.mean([sk.roc_auc_score(labels == label, probabilities[:, label]) for label in present]),
            "ece": expected_calibration_error(probabilities.max(axis=1), predicted == labels),
            "log_loss": sk.log_loss(labels, probabilities, labels=np.arange(probabilities.shape[1])),
        }


PROBLEMS = [
    {"seed": 0},
    {"seed": 1, "classes": 2},
    {"seed": 2, "classes": 30, "rows": 90},
    {"seed": 3, "missing": 2},
    {"seed": 4, "other": True},
    {"seed": 5, "other": True, "missing": 1, "skill": 0.0},
    {"seed": 6, "skill": -4.0},
    {"seed": 7, "skill": 12.0},
    {"seed": 8, "rows": 1},
    {"seed": 9, "rows": 5000, "classes": 101, "other": True, "missing": 40},
]


@pytest.mark.parametrize("options", PROBLEMS, ids=str)
def test_every_metric_is_that_of_scikit_learn(options: dict[str, Any]) -> None:
    probabilities, labels = problem(**options)
    got = ClassificationScores.of(probabilities, labels, options.get("classes", 4)).metrics()
    assert got == pytest.approx(by_scikit_learn(probabilities, labels), abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("options", PROBLEMS, ids=str)
def test_the_figures_of_each_class_are_those_of_scikit_learn(options: dict[str, Any]) -> None:
    probabilities, labels = problem(**options)
    classes = options.get("classes", 4)
    wanted = sk.precision_recall_fscore_support(
        labels, probabilities.argmax(axis=1), labels=np.arange(classes), zero_division=0
    )
    got = ClassificationScores.of(probabilities, labels, classes).per_class()
    for name, values in zip(("precision", "recall", "f1", "rows"), wanted, strict=True):
        np.testing.assert_allclose([figures[name] for figures in got], values, atol=1e-12)


def test_the_confusion_matrix_is_that_of_scikit_learn_and_has_a_column_for_other_classes() -> None:
    probabilities, labels = problem(0, other=True, skill=0.3)
    predicted = probabilities.argmax(axis=1)
    scores = ClassificationScores.of(probabilities, labels, 4)
    wanted = sk.confusion_matrix(labels, predicted, labels=np.arange(5))
    assert np.array_equal(scores.confusion, wanted[:4])
    assert scores.confusion[:, 4].sum() == (predicted == 4).sum() > 0
    assert scores.rows == scores.confusion.sum() == 300
    without = ClassificationScores.of(*problem(0), 4)
    assert without.confusion.shape == (4, 5)
    assert not without.confusion[:, 4].any()


def test_the_pairs_that_are_mixed_up_most_stand_beside_a_matrix_of_not_too_many_classes() -> None:
    probabilities, labels = problem(0, other=True, skill=0.3)
    scores = ClassificationScores.of(probabilities, labels, 4)
    counts = scores.confusion[:, :-1].copy()
    np.fill_diagonal(counts, 0)
    confused = scores.confused()
    assert {(row, column): count for row, column, count in confused} == {
        (int(row), int(column)): int(counts[row, column]) for row, column in np.argwhere(counts)
    }
    assert [count for *_, count in confused] == sorted(counts[counts > 0], reverse=True)
    # A matrix of 5,000 classes would be 276 MB of JSON.
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 5000, 60)
    many = ClassificationScores.of(generator.dirichlet(np.full(5000, 0.5), 60).astype(np.float32), labels, 5000)
    details = many.details()
    assert (details["confusion"], len(details["confused"]), len(details["per_class"])) == ([], 20, 5000)
    assert sum(each["rows"] for each in details["per_class"]) == 60
    assert "confusion" not in vars(many), "it would take 200 MB"


def test_a_model_of_more_classes_predicts_the_most_probable_one_and_not_the_many_others() -> None:
    generator = np.random.default_rng(0)
    has = [f"class {number}" for number in range(20)]
    wanted = has[4:0:-1]
    probabilities = generator.dirichlet(np.full(20, 0.5), 300).astype(np.float32)
    labels = generator.integers(0, 4, 300)
    scores = ClassificationScores.of(by_label(probabilities, has, wanted), labels, 4)
    predicted = [has[number] for number in probabilities.argmax(axis=1)]
    assert scores.metrics()["accuracy"] == sk.accuracy_score([wanted[label] for label in labels], predicted) > 0
    np.testing.assert_allclose(scores.confidence, probabilities.max(axis=1))


def test_every_metric_that_can_be_gated_on_is_there_and_json_can_hold_it() -> None:
    scores = ClassificationScores.of(*problem(0), 4)
    assert set(scores.metrics()) == set(scores.intervals()) == set(TASKS["image_classification"].metrics) == set(NAMES)
    json.dumps([scores.metrics(), scores.intervals(), scores.per_class()], allow_nan=False)


def test_a_perfect_and_a_wholly_wrong_model_are_at_the_ends_of_the_range() -> None:
    labels = np.array([0, 1, 2] * 10)
    right, wrong = np.eye(3, dtype=np.float32)[labels], np.eye(3, dtype=np.float32)[(labels + 1) % 3]
    best, worst = (ClassificationScores.of(p, labels, 3).metrics() for p in (right, wrong))
    assert {name: best[name] for name in NAMES[:5]} == dict.fromkeys(NAMES[:5], 1.0)
    assert best["log_loss"] == pytest.approx(0.0, abs=1e-6)
    assert {name: worst[name] for name in NAMES[:4]} == dict.fromkeys(NAMES[:4], 0.0)
    assert (best["ece"], worst["ece"]) == (0.0, 1.0)
    assert np.isfinite(worst["log_loss"])


def test_a_model_whose_output_is_not_a_number_is_wrong_and_its_figures_are_finite() -> None:
    # A diverged training: argmax of NaN is class 0, which must not pass for a right answer on its rows.
    labels = np.array([0, 1] * 20)
    scores = ClassificationScores.of(np.full((40, 2), np.nan, dtype=np.float32), labels, 2)
    assert scores.metrics()["accuracy"] == 0.0
    json.dumps([scores.metrics(), scores.intervals()], allow_nan=False)


# Intervals


@pytest.mark.parametrize("options", PROBLEMS, ids=str)
def test_an_interval_contains_its_value(options: dict[str, Any]) -> None:
    scores = ClassificationScores.of(*problem(**options), options.get("classes", 4))
    for name, interval in scores.intervals().items():
        if options.get("rows") == 1:
            assert (interval["value"] is None) == (name == "roc_auc")
            assert interval["low"] is interval["high"] is None, "one row says nothing of others"
            continue
        assert interval["value"] == scores.metrics()[name]
        assert interval["low"] <= interval["value"] <= interval["high"], name


def test_the_interval_of_the_worst_class_contains_its_value_when_classes_are_alike() -> None:
    # Fifty classes, each right in 18 of 20 rows.
    labels = np.repeat(np.arange(50), 20)
    predicted = np.where(np.arange(1000) % 20 < 18, labels, (labels + 1) % 50)
    interval = ClassificationScores.of(np.eye(50, dtype=np.float32)[predicted], labels, 50).intervals()["min_recall"]
    assert interval["value"] == pytest.approx(0.9)
    assert interval["low"] <= interval["value"] <= interval["high"]


@pytest.mark.parametrize("name", NAMES)
def test_an_interval_narrows_with_the_square_root_of_the_rows(name: str) -> None:
    def width(rows: int) -> float:
        interval = ClassificationScores.of(*problem(0, rows=rows), 4).intervals()[name]
        return interval["high"] - interval["low"]

    assert width(250) / width(4000) == pytest.approx(4, rel=0.35)


@pytest.mark.parametrize("options", [{"seed": 0}, {"seed": 1, "other": True, "missing": 1}], ids=str)
def test_intervals_agree_with_resampling_the_rows_one_by_one(options: dict[str, Any]) -> None:
    probabilities, labels = problem(**options)
    generator = np.random.default_rng(99)
    resampled: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(1000):
        rows = generator.integers(0, len(labels), len(labels))
        for name, value in ClassificationScores.of(probabilities[rows], labels[rows], 4).metrics().items():
            resampled[name].append(value)
    for name, interval in ClassificationScores.of(probabilities, labels, 4).intervals().items():
        low, high = np.percentile(resampled[name], [2.5, 97.5])
        # The noise of both bootstraps: an extreme percentile of a thousand draws is known to a tenth of the width.
        assert interval["low"] == pytest.approx(low, abs=0.1 * (high - low)), name
        assert interval["high"] == pytest.approx(high, abs=0.1 * (high - low)), name


@pytest.fixture(scope="module")
def coverage() -> dict[str, float]:
    """For each metric, how often the interval of 200 rows holds the value of the whole population."""
    truth = ClassificationScores.of(*problem(10**6, rows=400_000, classes=3), 3).metrics()
    simulations = 300
    covered = dict.fromkeys(NAMES, 0)
    for seed in range(simulations):
        for name, interval in ClassificationScores.of(*problem(seed, rows=200, classes=3), 3).intervals().items():
            covered[name] += interval["low"] <= truth[name] <= interval["high"]
    return {name: count / simulations for name, count in covered.items()}


@pytest.mark.parametrize("name", ["accuracy", "macro_recall", "macro_f1", "roc_auc", "log_loss"])
def test_intervals_cover_the_truth_about_as_often_as_they_say(name: str, coverage: dict[str, float]) -> None:
    # 95% of 300 simulations has a standard error of 1.3%; the percentile bootstrap falls a little short of its level.
    assert 0.91 <= coverage[name] <= 0.985


def test_intervals_are_the_same_every_time() -> None:
    assert ClassificationScores.of(*problem(0), 4).intervals() == ClassificationScores.of(*problem(0), 4).intervals()


def test_the_reliability_curve_adds_up_to_the_calibration_error() -> None:
    probabilities, labels = problem(0, skill=0.5)
    scores = ClassificationScores.of(probabilities, labels, 4)
    bins = scores.details()["calibration"]
    assert sum(entry["rows"] for entry in bins) == 300
    assert all(entry["low"] <= entry["confidence"] <= entry["high"] for entry in bins)
    error = sum(entry["rows"] * abs(entry["confidence"] - entry["accuracy"]) for entry in bins) / 300
    assert error == pytest.approx(scores.metrics()["ece"])


def test_a_roc_auc_with_a_single_class_is_not_a_number() -> None:
    scores = ClassificationScores.of(np.eye(2, dtype=np.float32)[np.zeros(9, dtype=int)], np.zeros(9, dtype=int), 2)
    assert scores.intervals()["roc_auc"] == {"value": None, "low": None, "high": None}
    assert scores.intervals()["accuracy"]["value"] == 1.0


def test_a_class_that_the_test_rows_lack_does_not_pull_averages_down() -> None:
    probabilities, labels = problem(0, classes=4, missing=2, skill=12)
    got = ClassificationScores.of(probabilities, labels, 4).intervals()
    assert got["macro_recall"]["value"] == got["min_recall"]["value"] == 1.0
    assert got["min_recall"]["low"] == 1.0


def test_many_classes_are_resampled_in_pieces_with_the_same_result() -> None:
    probabilities, labels = problem(0, rows=2000, classes=150)
    scores = ClassificationScores.of(probabilities, labels, 150)
    interval = scores.intervals()["accuracy"]
    error = (interval["value"] * (1 - interval["value"]) / 2000) ** 0.5
    assert interval["low"] == pytest.approx(interval["value"] - 1.96 * error, abs=0.3 * error)
    assert interval["high"] == pytest.approx(interval["value"] + 1.96 * error, abs=0.3 * error)

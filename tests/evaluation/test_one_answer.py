"""A model beside one that answers the same for every row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import balanced_accuracy_score, r2_score, root_mean_squared_error

from gpu_pipelines.evaluation.metrics.classification import ClassificationScores
from gpu_pipelines.evaluation.metrics.one_answer import no_better_than_one_answer
from gpu_pipelines.evaluation.scores import Scores, summary
from gpu_pipelines.tasks.regression.scoring import RegressionScores

LABELS = np.repeat([0, 1, 2], [140, 50, 10])


def told(scores: Scores, metric: str, more_is_better: bool = True) -> str:
    evaluation: Any = SimpleNamespace(select_by=metric, more_is_better=more_is_better, test=summary(scores))
    return no_better_than_one_answer(evaluation)


def classifier(right: float) -> ClassificationScores:
    """One that is right in a share of the rows of each class, and says nothing of the others."""
    generator = np.random.default_rng(0)
    probabilities = np.full((len(LABELS), 3), 0.1, dtype=np.float32)
    guessed = np.where(generator.random(len(LABELS)) < right, LABELS, (LABELS + 1) % 3)
    probabilities[np.arange(len(LABELS)), guessed] = 0.8
    return ClassificationScores.of(probabilities, LABELS, 3)


def answering_the_first() -> ClassificationScores:
    return ClassificationScores.of(np.tile(np.array([[0.8, 0.1, 0.1]]), (len(LABELS), 1)), LABELS, 3)


def test_one_answer_is_that_of_scikit_learns_dummies() -> None:
    rows = np.zeros((len(LABELS), 1))
    dummy = DummyClassifier(strategy="most_frequent").fit(rows, LABELS).predict(rows)
    found = classifier(0.5).one_answer()
    assert found["accuracy"] == np.mean(dummy == LABELS)
    assert found["macro_recall"] == pytest.approx(balanced_accuracy_score(LABELS, dummy))
    true = np.random.default_rng(1).normal(5, 3, (200, 2)) * [1, 100]
    mean = DummyRegressor(strategy="mean").fit(rows, true).predict(rows)
    of_mean = RegressionScores.of(np.concatenate([mean] * 3, axis=1), true, ("a", "b"))
    assert of_mean.one_answer()["rmse"] == pytest.approx(root_mean_squared_error(true, mean))
    assert of_mean.one_answer()["r2"] == pytest.approx(r2_score(true, mean))
    assert "rmse is " in told(of_mean, "rmse", more_is_better=False)


def test_only_what_is_better_beyond_chance_is_better() -> None:
    assert told(classifier(0.9), "accuracy") == ""
    for right in (0.7, 0.5):
        said = told(classifier(right), "accuracy")
        assert "a model that answers the same for every row has 0.7000, so this one may have learned nothing" in said
    assert "accuracy is 0.7000 on test" in told(answering_the_first(), "accuracy")
    assert told(classifier(0.7), "macro_recall") == ""
    assert told(classifier(0.5), "ece", more_is_better=False) == ""  # of which one answer says nothing


def test_a_few_rows_are_judged_by_the_value() -> None:
    few = classifier(1.0).subset(np.array([0, 150, 199]))
    assert told(few, "accuracy") == ""
    assert told(few.subset(np.array([0])), "accuracy") != ""

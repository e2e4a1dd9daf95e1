"""Whatever a model predicts, and however few rows there are, JSON can hold the evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from gpu_pipelines.evaluation.champion.comparison import Comparison
from gpu_pipelines.evaluation.metrics.classification import ClassificationScores
from gpu_pipelines.evaluation.metrics.loss import LikelihoodScores
from gpu_pipelines.evaluation.scores import Scores, summary
from gpu_pipelines.tasks.multi_label_classification.scoring import MultiLabelScores
from gpu_pipelines.tasks.preference.scoring import PreferenceScores
from gpu_pipelines.tasks.regression.scoring import RegressionScores
from gpu_pipelines.tasks.token_classification.scoring import EntityScores

TAGS = np.array(["O", "B-place", "I-place", "B-name"])


def classified(values: np.ndarray) -> Scores:
    return ClassificationScores.of(values[:, :3], np.arange(len(values)) % 2, 3)


def multi_labelled(values: np.ndarray) -> Scores:
    return MultiLabelScores.of(values[:, :3], np.eye(3)[np.arange(len(values)) % 3], "abc")


def regressed(values: np.ndarray) -> Scores:
    true = np.column_stack([np.arange(len(values)), np.full(len(values), 2.7)])
    return RegressionScores.of(values, true, ("a", "b"))


def tagged(values: np.ndarray) -> Scores:
    found = TAGS[np.nan_to_num(values * 4, posinf=0).astype(int) % 4].tolist()
    return EntityScores.of(found, [TAGS[:1].tolist() * 6] * len(values), ["place", "name"])


def with_losses(values: np.ndarray) -> Scores:
    tokens = np.arange(len(values)) % 3
    return LikelihoodScores.of(np.column_stack([values[:, 0] * tokens, tokens, tokens]), tokens * 2.0, completions=True)


def preferred(values: np.ndarray) -> Scores:
    return PreferenceScores(np.column_stack([values[:, :3], np.ones(len(values)), values[:, 4:]]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("scored", [classified, multi_labelled, regressed, tagged, with_losses, preferred])
def test_json_holds_the_scores_of_odd_predictions(scored: Callable[[np.ndarray], Scores]) -> None:
    generator = np.random.default_rng(0)
    for rows in (1, 7):
        for odd in (np.nan, np.inf):
            for share in (0.2, 1.0):
                ours, theirs = (generator.random((rows, 6)).astype(np.float32) for _ in range(2))
                ours[generator.random((rows, 6)) < share] = odd
                for each in (Comparison(scored(ours), scored(theirs), 1), Comparison(scored(theirs), scored(ours), 1)):
                    json.dumps([summary(each.ours), each.summary()], allow_nan=False)

"""Loss, perplexity and token accuracy are ratios of sums; their intervals are what resampling the rows gives."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gpu_pipelines.evaluation.metrics.loss import LikelihoodScores
from gpu_pipelines.evaluation.statistics.bootstrap import json_metrics
from gpu_pipelines.tasks.tasks import TASKS


def texts(rows: int, seed: int = 0) -> np.ndarray:
    """Rows of 1 to 50 tokens, of which longer ones are easier: sums of losses, tokens, tokens predicted right."""
    generator = np.random.default_rng(seed)
    loss_tokens = generator.integers(1, 51, rows)
    losses = loss_tokens * generator.gamma(4.0, 0.5, rows) * (1.5 - loss_tokens / 60)
    return np.stack([losses, loss_tokens, generator.binomial(loss_tokens, 0.4)], axis=1).astype(np.float32)


def test_every_term_weighs_the_same_however_long_its_row_is() -> None:
    sums = np.array([[2.0, 1, 1], [3.0, 9, 3], [0.0, 0, 0]], dtype=np.float32)
    scores = LikelihoodScores.of(sums, np.array([4.0, 6.0, 0.0]), completions=True)
    assert scores.metrics() == pytest.approx(
        {
            "loss": 0.5,
            "perplexity": math.exp(0.5),
            "bits_per_byte": 0.5 / math.log(2),
            "token_accuracy": 0.4,
            "completion_accuracy": 0.5,
        }
    )
    assert (scores.rows, scores.details()) == (3, {"loss_tokens": 10})
    assert list(scores.metrics()) == list(scores.resampled) == list(TASKS["causal_lm"].metrics)
    assert scores.subset(np.array([1])).metrics()["completion_accuracy"] == 0


def test_intervals_agree_with_the_normal_approximation_of_a_ratio() -> None:
    sums = texts(2000)
    got = LikelihoodScores.of(sums).intervals()
    sums = sums.astype(np.float64)
    for column, name in ((0, "loss"), (2, "token_accuracy")):
        ratio = sums[:, column].sum() / sums[:, 1].sum()
        # The standard error of a ratio of sums: Cochran, Sampling Techniques (1977), equation 6.13.
        error = np.std(sums[:, column] - ratio * sums[:, 1]) / math.sqrt(len(sums)) / sums[:, 1].mean()
        assert got[name]["value"] == pytest.approx(ratio, rel=1e-5)
        assert got[name]["low"] == pytest.approx(ratio - 1.96 * error, abs=0.2 * error)
        assert got[name]["high"] == pytest.approx(ratio + 1.96 * error, abs=0.2 * error)
    for end in ("value", "low", "high"):
        assert got["perplexity"][end] == pytest.approx(math.exp(got["loss"][end] or 0))


def test_intervals_are_the_same_every_time_and_hold_their_value() -> None:
    scores = LikelihoodScores.of(texts(30))
    assert scores.intervals() == LikelihoodScores.of(texts(30)).intervals()
    assert all(i["low"] <= i["value"] <= i["high"] for i in scores.intervals().values())  # type: ignore[operator]


def test_without_a_meaning_of_right_there_is_no_accuracy() -> None:
    sums = texts(20)
    sums[:, 2] = np.nan
    assert list(LikelihoodScores.of(sums).metrics()) == list(LikelihoodScores.of(sums).intervals())
    assert list(LikelihoodScores.of(sums).metrics()) == ["loss", "perplexity"]


@pytest.mark.parametrize(("loss", "known"), [(np.nan, []), (np.inf, []), (1e6, ["loss"])])
@pytest.mark.filterwarnings("error")
def test_what_is_no_finite_number_becomes_none(loss: float, known: list[str]) -> None:
    sums = texts(20)
    sums[:, 0] = loss * sums[:, 1]
    scores = LikelihoodScores.of(sums)
    values = json_metrics(scores.metrics())
    assert [name for name in ("loss", "perplexity") if values[name] is not None] == known
    assert {name: metric["value"] for name, metric in scores.intervals().items()} == values
    assert all(metric["low"] is None for metric in scores.intervals().values() if metric["value"] is None)


def test_rows_without_terms_have_no_loss() -> None:
    assert json_metrics(LikelihoodScores.of(np.zeros((4, 3), dtype=np.float32)).metrics())["loss"] is None

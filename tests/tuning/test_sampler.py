"""Which values a trial has: the same for the same knowledge, and better ones with more of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpu_pipelines.tuning.sampler import Known, importance, next_values
from gpu_pipelines.tuning.space import space_of

SPACE = space_of(
    {
        "learning_rate": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "optimizer": {"type": "categorical", "choices": ["adamw", "sgd"]},
        "momentum": {"type": "float", "low": 0.5, "high": 0.9, "when": {"optimizer": "sgd"}},
        "warmup_steps": {"type": "int", "low": 0, "high": 100, "step": 10},
    }
)


def loss_of(values: dict[str, Any]) -> float:
    """It is lowest at a learning rate of 0.01 with sgd; the warm-up does not matter."""
    return abs(math.log10(values["learning_rate"]) + 2) + (0.5 if values["optimizer"] == "adamw" else 0.0)


def searched(trials: int, seed: int, sampler: str) -> list[Known]:
    known: list[Known] = []
    for _ in range(trials):
        values = next_values(SPACE, known, seed, sampler)
        known.append(Known(values, {0: loss_of(values)}, is_whole=True, is_running=False))
    return known


def test_the_same_knowledge_gives_the_same_values_and_another_seed_others() -> None:
    known = searched(14, 0, "tpe")
    assert [each.values for each in searched(14, 0, "tpe")] == [each.values for each in known]
    assert next_values(SPACE, known, 0) == next_values(SPACE, known, 0)
    assert next_values(SPACE, known, 0) != next_values(SPACE, known, 1)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_values_are_in_the_space_and_a_parameter_counts_where_it_should(sampler: str) -> None:
    known = searched(25, 3, sampler)
    assert {each.values["optimizer"] for each in known} == {"adamw", "sgd"}
    for each in known:
        assert 1e-4 <= each.values["learning_rate"] <= 1
        assert each.values["warmup_steps"] in range(0, 101, 10)
        assert ("momentum" in each.values) == (each.values["optimizer"] == "sgd")


def test_what_is_known_makes_the_next_trials_better() -> None:
    later, at_random = (
        [sorted(loss_of(dict(each.values)) for each in searched(30, seed, sampler)[15:])[7] for seed in range(3)]
        for sampler in ("tpe", "random")
    )
    assert sum(later) < 0.7 * sum(at_random)


def test_trials_that_failed_or_are_running_are_known_too() -> None:
    known = searched(12, 0, "tpe")
    failed = [*known, Known(known[0].values, {0: math.inf}, is_whole=False, is_running=False)]
    running = [*known, Known(known[0].values, {}, is_whole=False, is_running=True)]
    for each in (failed, running):
        assert next_values(SPACE, each, 0).keys() >= {"learning_rate", "optimizer", "warmup_steps"}


def test_what_matters_is_told_from_what_does_not() -> None:
    shares = importance(SPACE, searched(30, 0, "random"))
    assert shares["learning_rate"] > 0.5 > shares["warmup_steps"]
    assert sum(shares.values()) == pytest.approx(1)
    assert importance(SPACE, searched(2, 0, "random")) == {}

"""Which trials go on."""

from __future__ import annotations

import math
import random

import pytest

from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.halving import Halving, Part, shares_of_rungs, with_rungs


def carried_out(halving: Halving, losses: list[float], at_once: int) -> list[Part]:
    """Trains at most so many parts at once, of which the oldest is done first; each has its trial's loss."""
    done: list[Part] = []
    running: list[Part] = []
    while True:
        while len(running) < at_once and (part := halving.next()) is not None:
            running.append(part)
        if not running:
            return done
        part = running.pop(0)
        halving.note(part, losses[part.trial])
        done.append(part)


@pytest.mark.parametrize(
    ("reduction", "first", "shares"),
    [
        (1, 0.1, [1]),
        (2, 1.0, [1]),
        (2, 0.6, [0.6, 1]),
        (2, 1 / 8, [1 / 8, 1 / 4, 1 / 2, 1]),
        (3, 1 / 9, [1 / 9, 1 / 3, 1]),
        (9, 1 / 4, [1 / 4, 1]),
    ],
)
def test_rungs_are_spread_from_the_first_to_the_end(reduction: int, first: float, shares: list[float]) -> None:
    assert shares_of_rungs(reduction, first) == pytest.approx(shares)


@pytest.mark.parametrize(
    ("settings", "reduction", "first", "between", "steps"),
    [
        ({"max_steps": 90}, 3, 1 / 9, 10, [10, 30, 90]),
        ({"max_steps": 100}, 3, 1 / 9, 12, [12, 36, 100]),
        ({"max_steps": 80}, 2, 1 / 8, 10, [10, 20, 40, 80]),
        ({"max_steps": 80}, 1, 0.6, 10, [80]),
        ({"max_steps": 270}, 2, 0.6, 33, [165, 270]),
        ({"max_steps": 90, "checkpoint_every_steps": 20}, 3, 1 / 9, 20, [20, 40, 90]),
        ({"max_steps": 2}, 3, 1 / 9, 1, [1, 1, 2]),
    ],
)
def test_each_rung_is_a_checkpoint(
    settings: dict, reduction: int, first: float, between: int, steps: list[int]
) -> None:
    trained, rungs = with_rungs(TrainingSettings(**settings), 1_000, shares_of_rungs(reduction, first))
    assert (trained.checkpoint_every_steps, rungs) == (between, steps)
    for step in rungs:
        assert trained.end_of(step, trained.max_steps) == step


@pytest.mark.parametrize("at_once", [1, 4])
def test_of_27_trials_the_best_third_goes_on_twice(at_once: int) -> None:
    losses = [float(number) for number in range(27)]
    random.Random(0).shuffle(losses)
    halving = Halving(27, rungs=3, reduction=3)
    done = carried_out(halving, losses, at_once)
    assert len(set(done)) == len(done), "no part twice"
    assert [sum(part.rung == rung for part in done) for rung in (0, 1)] == [27, len(halving.losses[1])]
    assert 9 <= len(halving.losses[1]) <= 14, "asynchronous: some went on who were among the best of the first ones"
    assert halving.best == losses.index(0.0)
    assert halving.best in halving.losses[2]
    for part in done:
        assert part.rung == 0 or done.index(Part(part.trial, part.rung - 1)) < done.index(part)


def test_of_few_trials_the_best_one_is_trained_to_its_end() -> None:
    halving = Halving(2, rungs=3, reduction=3)
    done = carried_out(halving, [2.0, 1.0], at_once=2)
    assert done == [Part(0, 0), Part(1, 0), Part(1, 1), Part(1, 2)]


def test_trials_that_failed_do_not_go_on_and_do_not_win() -> None:
    halving = Halving(3, rungs=2, reduction=3)
    done = carried_out(halving, [math.inf, math.inf, 5.0], at_once=1)
    assert done[-1] == Part(2, 1)
    assert halving.best == 2
    every = Halving(3, rungs=2, reduction=3)
    assert len(carried_out(every, [math.inf] * 3, at_once=1)) == 3
    assert every.best is None


def test_one_that_fails_later_makes_way_for_the_next() -> None:
    halving = Halving(2, rungs=2, reduction=3)
    for loss in (1.0, 2.0):
        part = halving.next()
        assert part is not None
        halving.note(part, loss)
    assert halving.next() == Part(0, 1)
    halving.note(Part(0, 1), math.inf)
    assert halving.next() == Part(1, 1)


def test_without_reduction_all_are_trained_to_their_end() -> None:
    done = carried_out(Halving(5, rungs=1, reduction=1), [1.0] * 5, at_once=2)
    assert done == [Part(number, 0) for number in range(5)]

"""Every row once per epoch, each process its own part, any step without the steps before it."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_pipelines.training.rows.batches import SampleOrder


def global_batch(step: int, world_size: int, rows: int = 103, batch: int = 12, seed: int = 3) -> np.ndarray:
    parts = [SampleOrder(rows, batch, seed, rank, world_size).rows_of_step(step) for rank in range(world_size)]
    return np.concatenate(parts)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_global_batch_does_not_depend_on_the_number_of_processes(world_size: int) -> None:
    for step in range(30):
        assert np.array_equal(global_batch(step, world_size), global_batch(step, 1))


def test_each_epoch_takes_every_row_once() -> None:
    stream = np.concatenate([global_batch(step, 2) for step in range(103)])
    for epoch in range(len(stream) // 103):
        assert sorted(stream[epoch * 103 : (epoch + 1) * 103]) == list(range(103))


def test_epochs_have_different_orders_and_seeds_too() -> None:
    stream = np.concatenate([global_batch(step, 1) for step in range(103)])
    assert not np.array_equal(stream[:103], stream[103:206])
    other = np.concatenate([global_batch(step, 1, seed=4) for step in range(103)])
    assert not np.array_equal(stream[:103], other[:103])


def test_a_step_can_be_asked_for_without_those_before_it() -> None:
    walked = SampleOrder(103, 12, 3)
    for step in range(50):
        rows = walked.rows_of_step(step)
    assert np.array_equal(rows, SampleOrder(103, 12, 3).rows_of_step(49))


def test_a_batch_larger_than_the_data_spans_epochs() -> None:
    rows = SampleOrder(5, 12, 0).rows_of_step(0)
    assert sorted(rows[:5]) == sorted(rows[5:10]) == [0, 1, 2, 3, 4]

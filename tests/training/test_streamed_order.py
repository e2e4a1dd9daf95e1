"""The order of streamed rows: every row once per epoch, for any number of processes, and few shards at a time."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_pipelines.training.rows.streamed_order import StreamedOrder, Windows

SHARDS = [10] * 9 + [13, 3]
ROWS, BATCH = sum(SHARDS), 12
STARTS = np.cumsum([0, *SHARDS])


def order(rank: int = 0, world_size: int = 1, seed: int = 3, window: int = 3) -> StreamedOrder:
    return StreamedOrder(SHARDS, BATCH, seed, window, rank, world_size)


def stream(steps: int, **options: int) -> np.ndarray:
    walked = order(**options)
    return np.concatenate([walked.rows_of_step(step) for step in range(steps)])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_global_batch_does_not_depend_on_the_number_of_processes(world_size: int) -> None:
    orders = [order(rank, world_size) for rank in range(world_size)]
    for step in range(40):
        together = np.concatenate([each.rows_of_step(step) for each in orders])
        assert np.array_equal(together, order().rows_of_step(step))


def test_each_epoch_takes_every_row_once_and_in_another_order() -> None:
    rows = stream(ROWS)
    epochs = [rows[start : start + ROWS] for start in range(0, len(rows) - ROWS + 1, ROWS)]
    assert len(epochs) == BATCH
    for epoch in epochs:
        assert sorted(epoch) == list(range(ROWS))
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)
    assert not np.array_equal(epochs[0], stream(ROWS, seed=4)[:ROWS])


def test_a_step_can_be_asked_for_without_those_before_it() -> None:
    walked = order()
    for step in (0, 0, *range(50), 20):
        rows = walked.rows_of_step(step)
        assert np.array_equal(rows, order().rows_of_step(step))


def test_rows_are_mixed_over_the_shards_of_a_window_and_over_no_others() -> None:
    rows = stream(ROWS)[:ROWS]
    shards = np.searchsorted(STARTS, rows, side="right") - 1
    windows = Windows(len(SHARDS), 3)
    assert np.diff(windows.edges).tolist() == [2, 3, 3, 3]
    first, start = order(), 0
    for window in range(4):
        own = first.shards_of_window(0, window)
        end = start + sum(SHARDS[shard] for shard in own)
        assert set(shards[start:end]) == set(own)
        if len(own) > 1:
            assert np.count_nonzero(np.diff(shards[start:end])) > 2 * len(own), "the rows come shard by shard"
        start = end


def shards_of(rows: np.ndarray) -> list[int]:
    return list(dict.fromkeys((np.searchsorted(STARTS, rows, side="right") - 1).tolist()))


@pytest.mark.parametrize("world_size", [1, 2])
def test_shards_are_announced_in_the_order_in_which_rows_of_them_come(world_size: int) -> None:
    for step in range(25):
        for rank in range(world_size):
            announced = order(rank, world_size).shards_from(step, 30)
            coming = order(rank, world_size)
            here = shards_of(coming.rows_of_step(step))
            needed = shards_of(np.concatenate([coming.rows_of_step(later) for later in range(step, 30)]))
            # Those of the window before are read once more, and asked for by that.
            assert set(needed) - set(here) <= set(announced)
            if step == 0:  # those of a window come all at once
                assert all(abs(announced.index(shard) - place) < 3 for place, shard in enumerate(needed))
    assert len(order().shards_from(24, 25)) <= 6, "what no step needs is not fetched"


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_no_process_announces_a_window_that_it_is_done_with(world_size: int) -> None:
    """Those that are done with it would delete it, and this one fetch it, again and again."""
    for step in range(25):
        for rank in range(world_size):
            walked = order(rank, world_size)
            epoch, window = walked.window_of_step(step)
            own = walked.shards_of_window(epoch, window)
            assert walked.shards_from(step, 40)[: len(own)] == own


@pytest.mark.parametrize(("window", "rows"), [(1, 3), (1, 24), (3, 24), (3, 60), (0, 24)])
def test_no_rows_in_a_row_are_from_more_windows_than_said(window: int, rows: int) -> None:
    windows = Windows(len(SHARDS), window)
    most = windows.open_at_once(SHARDS, rows)
    for seed in range(20):
        found, at = order(seed=seed, window=window), 0
        edges = [0]
        for number in range(len(windows.edges) - 1):
            at += sum(SHARDS[shard] for shard in found.shards_of_window(0, number))
            edges.append(at)
        for start in range(ROWS - rows):
            touched = np.searchsorted(edges, [start, start + rows - 1], side="right")
            assert touched[1] - touched[0] + 1 <= most


def test_windows_are_a_32nd_of_the_shards_and_at_most_64() -> None:
    assert [Windows(shards).largest for shards in (1, 31, 64, 320, 2048, 100_000)] == [1, 1, 2, 10, 64, 64]

"""The order of the rows, and the rows of each step, split over processes and micro-batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gpu_pipelines.artifacts.dataset import Split
from gpu_pipelines.artifacts.streamed_dataset import StreamedSplit
from gpu_pipelines.tasks.recipe import Batch, Recipe
from gpu_pipelines.training.row_changes import RowChanges
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.streamed_order import StreamedOrder

Columns = dict[str, Any]
#: Micro-batches, each with its number of loss tokens, and that of the global batch.
MicroBatches = tuple[list[tuple[Batch, int]], int]


class SampleOrder:
    """An endless stream of row numbers: one random permutation of the rows after another.

    Step s takes the global batch at positions s × batch to (s + 1) × batch of the stream, and each process an equal,
    contiguous part of it. A batch may straddle two epochs, so that no row is ever left out.

    Args:
        rows: number of training rows.
        global_batch_size: rows per step over all processes; a multiple of `world_size`.
        seed: of the permutations.
        rank: this process.
        world_size: number of processes.
    """

    def __init__(self, rows: int, global_batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> None:
        self._rows = rows
        self._batch = global_batch_size
        self._seed = seed
        self._share = global_batch_size // world_size
        self._offset = rank * self._share
        self._permutations: dict[int, np.ndarray] = {}

    def rows_of_step(self, step: int) -> np.ndarray:
        """Row numbers of this process's part of the batch of `step` (from 0): int64 of shape (share,)."""
        positions = step * self._batch + self._offset + np.arange(self._share)
        epochs, places = np.divmod(positions, self._rows)
        for passed in [epoch for epoch in self._permutations if epoch < epochs[0]]:
            del self._permutations[passed]
        return np.concatenate([self._permutation(int(e))[places[epochs == e]] for e in np.unique(epochs)])

    def _permutation(self, epoch: int) -> np.ndarray:
        if epoch not in self._permutations:
            self._permutations[epoch] = np.random.default_rng([self._seed, epoch]).permutation(self._rows)
        return self._permutations[epoch]


class TrainingBatches:
    """This process's micro-batches of every step.

    Args:
        recipe: makes batches of rows.
        rows: the training split.
        settings: global batch size, micro-batch size, seed, order.
        device: where batches go; for a GPU the rows of the next step are read while it computes.
    """

    def __init__(self, recipe: Recipe, rows: Split, settings: TrainingSettings, device: torch.device) -> None:
        self._recipe, self._rows, self._device = recipe, rows, device
        rank, world = dist.get_rank(), dist.get_world_size()
        self._changes = RowChanges(settings, rank, world)
        batch, seed = settings.global_batch_size, settings.seed
        self._order: SampleOrder | StreamedOrder = SampleOrder(len(rows), batch, seed, rank, world)
        if settings.streaming == "on":
            self._order = StreamedOrder(rows.shard_rows, batch, seed, settings.shuffle_shards, rank, world)
        self._total = 0
        self._window: tuple[int, int] | None = None
        self._global = settings.global_batch_size
        self._micro = settings.micro_batch_size or settings.global_batch_size // world
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="rows") if device.type == "cuda" else None
        self._ahead: tuple[int, Future[Columns]] | None = None
        self._seconds, self._told = 0.0, time.monotonic()

    def begin(self, step: int, total: int) -> None:
        """Says that the steps from `step` to `total` follow: shards that they need are fetched ahead."""
        self._total = total
        self._expect(step)

    def streaming_figures(self) -> dict[str, float]:
        """How fetching went on all machines since the last call, which all processes make; empty without streaming."""
        if not isinstance(self._rows, StreamedSplit):
            return {}
        now = time.monotonic()
        seconds, self._told = max(now - self._told, 1e-9), now
        fetched, stalled = self._rows.cache.taken()
        sums = torch.tensor([fetched], dtype=torch.float64)
        most = torch.tensor([stalled, self._rows.cache.used()], dtype=torch.float64)
        dist.all_reduce(sums)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return {
            "fetched_mb_per_second": round(sums.item() / seconds / 1e6, 3),
            "stalled_seconds": round(most[0].item(), 3),
            "cache_gb": round(most[1].item() / 1e9, 6),
        }

    def of_step(self, step: int) -> MicroBatches:
        """The micro-batches of a step, each with its number of loss tokens, and that of the global batch."""
        began = time.monotonic()
        micro_batches = self._make(step)
        self._seconds += time.monotonic() - began
        return micro_batches

    def seconds_taken(self) -> float:
        """Seconds that the calling thread spent on making batches since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _make(self, step: int) -> MicroBatches:
        columns = self._read(step)
        size = len(next(iter(columns.values())))
        micro_batches, counted = [], False
        for start in range(0, size, self._micro):
            part = {name: array[start : start + self._micro] for name, array in columns.items()}
            loss_tokens = self._recipe.loss_tokens(part)
            counted = loss_tokens is not None
            rows = min(self._micro, size - start)
            micro_batches.append((self._recipe.batch(part, self._device), rows if loss_tokens is None else loss_tokens))
        if not counted:
            return micro_batches, self._global
        together = torch.tensor([sum(loss_tokens for _, loss_tokens in micro_batches)])
        dist.all_reduce(together)
        return micro_batches, int(together.item())

    def close(self) -> None:
        """Ends the threads that read and fetch."""
        if isinstance(self._rows, StreamedSplit):
            self._rows.cache.close()  # who waits for a shard waits no longer
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)
        if isinstance(self._rows, StreamedSplit):
            self._rows.let_go()

    def _read(self, step: int) -> Columns:
        if self._reader is None:
            return self._take(step)
        ahead = self._ahead
        columns = ahead[1].result() if ahead is not None and ahead[0] == step else self._take(step)
        if step + 1 != self._total:
            self._expect(step + 1)
            self._ahead = (step + 1, self._reader.submit(self._rows_changed, step + 1))
        return columns

    def _take(self, step: int) -> Columns:
        self._expect(step)
        return self._rows_changed(step)

    def _rows_changed(self, step: int) -> Columns:
        return self._changes.of(self._rows.take(self._order.rows_of_step(step)), step)

    def _expect(self, step: int) -> None:
        """Tells the split which shards come, whenever another window begins."""
        if not (self._total and isinstance(self._rows, StreamedSplit) and isinstance(self._order, StreamedOrder)):
            return
        window = self._order.window_of_step(step)
        if window != self._window:
            self._window = window
            self._rows.expect(self._order.shards_from(step, self._total), self._order.shards_of_window(*window))


def validation_batches(
    recipe: Recipe, rows: Split, rows_per_batch: int, device: torch.device
) -> Iterator[tuple[Batch, int]]:
    """This process's batches of a split in order, each with its number of loss tokens.

    All processes get the same number of batches, because a sharded model is run by all of them together; one that has
    no rows left runs the first ones again with no loss tokens.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    for start in range(0, len(rows), rows_per_batch * world):
        low = start + rank * rows_per_batch
        beyond = low >= len(rows)
        low = 0 if beyond else low
        numbers = range(low, min(low + rows_per_batch, len(rows)))
        columns = rows.take(np.arange(numbers.start, numbers.stop))
        loss_tokens = recipe.loss_tokens(columns)
        count = len(numbers) if loss_tokens is None else loss_tokens
        yield recipe.batch(columns, device), 0 if beyond else count

"""The order of the rows, and the rows of each step, split over processes and micro-batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gpu_pipelines.artifacts.dataset import Split
from gpu_pipelines.artifacts.streamed_dataset import StreamedSplit
from gpu_pipelines.tasks.recipe import REFERENCE, Batch, Recipe
from gpu_pipelines.training.rows.ahead import Ahead, Coming
from gpu_pipelines.training.rows.row_changes import RowChanges
from gpu_pipelines.training.rows.streamed_order import StreamedOrder
from gpu_pipelines.training.settings import TrainingSettings

Columns = dict[str, Any]
#: Micro-batches, each with its number of loss tokens, and that of the global batch.
MicroBatches = tuple[list[tuple[Batch, int]], int]
#: Steps that are being made ready while one is computed: the next, of which the loss tokens of all processes are being
#: summed as well, and the one behind it, so that its loss tokens are known when the next is computed.
AHEAD = 2
_SECONDS_BETWEEN_QUESTIONS = 0.25


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


@dataclass(frozen=True)
class _Share:
    """This process's part of a step: its micro-batches, each with its number of loss tokens, and whether they count."""

    micro_batches: list[tuple[Batch, int]]
    counted: bool


class _Step:
    """A step that is being made ready.

    Args:
        share: this process's part.
    """

    def __init__(self, share: Coming[_Share]) -> None:
        self.share = share
        self._sum: tuple[torch.Tensor, dist.Work] | None = None

    def sum_loss_tokens(self) -> None:
        """Begins to sum the loss tokens over all processes, in all of them at the same step, once the rows are read."""
        share = self.share.made()
        if share.counted and self._sum is None:
            together = torch.tensor([sum(loss_tokens for _, loss_tokens in share.micro_batches)])
            self._sum = together, dist.all_reduce(together, async_op=True)

    def settle(self) -> None:
        """Waits for the sum, if it was begun."""
        if self._sum is not None:
            self._sum[1].wait()

    def ready(self, rows: int) -> MicroBatches:
        """The step; without loss tokens, `rows` stand for those of all processes."""
        self.sum_loss_tokens()
        self.settle()
        micro_batches = self.share.made().micro_batches
        self.share.usable(tensor for batch, _ in micro_batches for tensor in batch.values())
        return micro_batches, rows if self._sum is None else int(self._sum[0].item())


class TrainingBatches:
    """This process's micro-batches of every step, prepared while earlier steps are computed.

    Preparing ahead changes only the time: a step's rows follow from its number.

    Args:
        recipe: makes batches of rows; for a GPU in a thread.
        rows: the training split.
        settings: global batch size, micro-batch size, seed, order.
        device: where batches go.
        on_thread: see `Ahead`.

    Attributes:
        rows: the training split.
        reference: for a recipe with a reference, the model's output for each row before the first step (rows, columns).
    """

    reference: np.ndarray | None = None

    def __init__(
        self,
        recipe: Recipe,
        rows: Split,
        settings: TrainingSettings,
        device: torch.device,
        on_thread: bool | None = None,
    ) -> None:
        self._recipe, self.rows, self._device = recipe, rows, device
        rank, world = dist.get_rank(), dist.get_world_size()
        self._changes = RowChanges(settings, rank, world)
        batch, seed = settings.global_batch_size, settings.seed
        self._order: SampleOrder | StreamedOrder = SampleOrder(len(rows), batch, seed, rank, world)
        self._streams = settings.streaming == "on"
        if self._streams:
            self._order = StreamedOrder(rows.shard_rows, batch, seed, settings.shuffle_shards, rank, world)
        self._total = 0
        self._window: tuple[int, int] | None = None
        self._global = settings.global_batch_size
        self._micro = settings.rows_at_once(world)
        self._counts = getattr(type(recipe), "loss_tokens", None) is not Recipe.loss_tokens
        self._ahead = Ahead(device, on_thread)
        self._steps: dict[int, _Step] = {}
        self._seconds, self._told = 0.0, time.monotonic()

    def begin(self, step: int, total: int) -> None:
        """Starts preparing the steps from `step` to `total`, and the shards for them."""
        self._total = total
        self._expect(step)

    def streaming_figures(self) -> dict[str, float]:
        """How fetching went on all machines since the last call, which all processes make; empty where none fetches."""
        if not self._streams:
            return {}
        now = time.monotonic()
        seconds, self._told = max(now - self._told, 1e-9), now
        # A machine whose disk has room reads the same order from a copy, and takes part all the same.
        cache = self.rows.cache if isinstance(self.rows, StreamedSplit) else None
        fetched, stalled = cache.taken() if cache else (0, 0.0)
        sums = torch.tensor([fetched], dtype=torch.float64)
        most = torch.tensor([stalled, cache.used() if cache else 0, cache is not None], dtype=torch.float64)
        dist.all_reduce(sums)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        if not most[2]:
            return {}
        return {
            "fetched_mb_per_second": round(sums.item() / seconds / 1e6, 3),
            "stalled_seconds": round(most[0].item(), 3),
            "cache_gb": round(most[1].item() / 1e9, 6),
        }

    def of_step(self, step: int) -> MicroBatches:
        """The micro-batches of a step, each with its number of loss tokens, and that of the global batch."""
        began = time.monotonic()
        following = self._begin_making(step)
        for each in following[: AHEAD if self._counts else 1]:
            self._steps[each].sum_loss_tokens()
        ready = self._steps.pop(step).ready(self._global)
        self._seconds += time.monotonic() - began
        return ready

    def _begin_making(self, step: int) -> range:
        """Begins a step and some after it, as far as they were not begun; returns which they are."""
        following = range(step, max(step + 1, min(step + 1 + AHEAD, self._total)))
        for each in following:
            if each not in self._steps:
                self._steps[each] = _Step(self._ahead.begin(partial(self._make, each)))
        return following

    def make_begun(self) -> None:
        """Makes the rows that were begun, if there is no thread; called when there is time for it."""
        began = time.monotonic()
        self._ahead.make_begun()
        self._seconds += time.monotonic() - began

    def await_step(self, step: int, gives_up: Callable[[], bool]) -> bool:
        """Waits until the rows of a step are there; False if it gave up before.

        Args:
            step: whose rows.
            gives_up: called repeatedly; True ends the waiting.
        """
        began = time.monotonic()
        self._begin_making(step)
        while not (there := self._steps[step].share.is_made(_SECONDS_BETWEEN_QUESTIONS)) and not gives_up():
            pass
        self._seconds += time.monotonic() - began
        return there

    def seconds_taken(self) -> float:
        """Seconds that the calling thread spent on batches since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def settle(self) -> None:
        """Waits for the sums that were begun; called before the processes end."""
        for step in self._steps.values():
            step.settle()

    def close(self) -> None:
        """Ends the threads that read and fetch."""
        if isinstance(self.rows, StreamedSplit):
            self.rows.cache.close()  # who waits for a shard waits no longer
        self._ahead.close()
        if isinstance(self.rows, StreamedSplit):
            self.rows.let_go()

    def _make(self, step: int) -> _Share:
        self._expect(step)
        columns = self._rows_changed(step)
        size = len(next(iter(columns.values())))
        micro_batches, counted = [], False
        for start in range(0, size, self._micro):
            part = {name: array[start : start + self._micro] for name, array in columns.items()}
            loss_tokens = self._recipe.loss_tokens(part)
            counted = loss_tokens is not None
            rows = min(self._micro, size - start)
            micro_batches.append((self._recipe.batch(part, self._device), rows if loss_tokens is None else loss_tokens))
        return _Share(micro_batches, counted)

    def _rows_changed(self, step: int) -> Columns:
        numbers = self._order.rows_of_step(step)
        columns = self.rows.take(numbers)
        if self.reference is not None:
            columns[REFERENCE] = self.reference[numbers]
        return self._changes.of(columns, step)

    def _expect(self, step: int) -> None:
        """Tells the split which shards come, whenever another window begins."""
        if not (self._total and isinstance(self.rows, StreamedSplit) and isinstance(self._order, StreamedOrder)):
            return
        window = self._order.window_of_step(step)
        if window != self._window:
            self._window = window
            self.rows.expect(self._order.shards_from(step, self._total), self._order.shards_of_window(*window))


def validation_batches(
    recipe: Recipe, rows: Split, rows_per_batch: int, device: torch.device, reference: np.ndarray | None = None
) -> Iterator[tuple[Batch, int]]:
    """This process's batches of a split in order, each with its number of loss tokens.

    All processes get the same number of batches, because a sharded model is run by all of them together; one that has
    no rows left runs those before again with no loss tokens.
    """
    for numbers, beyond in shares_in_order(rows, rows_per_batch):
        columns = rows.take(numbers)
        if reference is not None:
            columns[REFERENCE] = reference[numbers]
        loss_tokens = recipe.loss_tokens(columns)
        count = len(numbers) if loss_tokens is None else loss_tokens
        yield recipe.batch(columns, device), 0 if beyond else count


def shares_in_order(rows: Split, rows_per_batch: int, begin: int = 0) -> Iterator[tuple[np.ndarray, bool]]:
    """This process's rows of a split in order, a batch at a time.

    All processes get the same number of batches. One that has no rows left gets those before again, whose shard is
    still there, and True.

    Args:
        rows: the split.
        rows_per_batch: of each process.
        begin: the first row.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    try:
        for start in range(begin, len(rows), rows_per_batch * world):
            low = start + rank * rows_per_batch
            beyond = low >= len(rows)
            low = max(begin, low - rows_per_batch * world) if beyond else low
            yield np.arange(low, min(low + rows_per_batch, len(rows))), beyond
    finally:
        if isinstance(rows, StreamedSplit):
            rows.end_of_order()  # the last rows are those of another process, perhaps

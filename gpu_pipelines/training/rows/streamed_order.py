"""The order of rows that are read from a window of shards at a time, so that the others need not be on the disk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Where it is not said: one in so many shards is shuffled together, but at most `_MOST_SHARDS` (4 GiB of usual ones).
_ONE_IN = 32
_MOST_SHARDS = 64


class Windows:
    """How the shards of an epoch are cut into windows: as equal as they can be, the same for every epoch.

    Args:
        shards: number of shards of the split.
        shuffle_shards: shards of a window; 0 for a 32nd of all, at least 1 and at most 64.

    Attributes:
        edges: place in the epoch's order of shards at which each window begins, and the end.
        largest: most shards of a window.
    """

    def __init__(self, shards: int, shuffle_shards: int = 0) -> None:
        wanted = shuffle_shards or min(_MOST_SHARDS, max(1, shards // _ONE_IN))
        number = max(1, -(-shards // wanted))
        self.edges = np.arange(number + 1) * shards // number
        self.largest = int(np.diff(self.edges).max(initial=0))

    def open_at_once(self, shard_rows: Sequence[int], rows: int) -> int:
        """Most windows, of any order of the shards, that so many rows in a row are from; at least 2, if there are."""
        number = len(self.edges) - 1
        # Most windows lie between the first and the last row where these are made of the smallest shards.
        fewest = int(np.diff(self.edges).min())
        smallest = np.cumsum(np.sort(np.asarray(shard_rows)))[fewest - 1 :: fewest]
        between = int(np.searchsorted(smallest, max(0, rows - 2), side="right"))
        return min(number, between + 2)


class StreamedOrder:
    """An endless stream of row numbers: in each epoch the shards are shuffled, then the rows of each window of them.

    It depends on the seed and the step alone. What it holds in memory is one number for each shard, and the rows of a
    window or two. Step s takes the same positions of the stream as in `SampleOrder`.

    Args:
        shard_rows: rows of each shard of the split.
        global_batch_size: rows per step over all processes; a multiple of `world_size`.
        seed: of the permutations.
        shuffle_shards: shards of a window; 0 as `Windows` has it.
        rank: this process.
        world_size: number of processes.
    """

    def __init__(
        self,
        shard_rows: Sequence[int],
        global_batch_size: int,
        seed: int,
        shuffle_shards: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._shard_rows = np.asarray(shard_rows, dtype=np.int64)
        self._starts = np.cumsum([0, *shard_rows])
        self._rows = int(self._starts[-1])
        self._batch = global_batch_size
        self._seed = seed
        self._share = global_batch_size // world_size
        self._offset = rank * self._share
        self._windows = Windows(len(shard_rows), shuffle_shards)
        self._epochs: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._permutations: dict[tuple[int, int], np.ndarray] = {}

    def rows_of_step(self, step: int) -> np.ndarray:
        """Row numbers of this process's part of the batch of `step` (from 0): int64 of shape (share,)."""
        first = step * self._batch + self._offset
        last = first + self._share
        parts = []
        while first < last:
            epoch, place = divmod(first, self._rows)
            window, begins, ends = self._window_at(epoch, place)
            stop = min(ends, place + last - first)
            parts.append(self._permutation(epoch, window)[place - begins : stop - begins])
            first += stop - place
        self._forget_before(step)
        return np.concatenate(parts)

    def window_of_step(self, step: int) -> tuple[int, int]:
        """Epoch and window in which this process's part of a step ends."""
        epoch, place = divmod(step * self._batch + self._offset + self._share - 1, self._rows)
        return epoch, self._window_at(epoch, place)[0]

    def shards_of_window(self, epoch: int, window: int) -> list[int]:
        """The shards of a window."""
        low, high = self._windows.edges[window : window + 2]
        return [int(shard) for shard in self._epoch(epoch)[0][low:high]]

    def shards_from(self, step: int, total: int) -> list[int]:
        """The shards that are to come from a step on, each once, in order; those that no step to `total` needs are not.

        Of the window before, in which this process's part of the step may begin, none is among them. It is nearly done
        with, and another process that is done with it would delete it each time that this one had it fetched.

        Args:
            step: the step; the shards of the whole window in which this process's part of it ends are there.
            total: steps of the training.
        """
        epoch, window = self.window_of_step(step)
        end, found = total * self._batch, []
        for each in (epoch, epoch + 1):
            shards, window_starts = self._epoch(each)
            needed = each * self._rows + window_starts[:-1] < end
            stop = self._windows.edges[int(needed.sum())]
            found += shards[self._windows.edges[window] if each == epoch else 0 : stop].tolist()
        return list(dict.fromkeys(found))

    def _window_at(self, epoch: int, place: int) -> tuple[int, int, int]:
        """The window of a place in an epoch, and the places where it begins and ends."""
        starts = self._epoch(epoch)[1]
        window = int(np.searchsorted(starts, place, side="right")) - 1
        return window, int(starts[window]), int(starts[window + 1])

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards of an epoch in its order, and the place of the first row of each window, and the end."""
        if epoch not in self._epochs:
            shards = np.random.default_rng([self._seed, epoch]).permutation(len(self._shard_rows))
            rows = np.cumsum([0, *self._shard_rows[shards]])
            self._epochs[epoch] = (shards, rows[self._windows.edges])
        return self._epochs[epoch]

    def _permutation(self, epoch: int, window: int) -> np.ndarray:
        if (epoch, window) not in self._permutations:
            shards = self.shards_of_window(epoch, window)
            rows = np.concatenate([np.arange(self._starts[shard], self._starts[shard + 1]) for shard in shards])
            self._permutations[epoch, window] = np.random.default_rng([self._seed, epoch, window]).permutation(rows)
        return self._permutations[epoch, window]

    def _forget_before(self, step: int) -> None:
        epoch, place = divmod(step * self._batch, self._rows)
        now = (epoch, self._window_at(epoch, place)[0])
        for passed in [each for each in self._permutations if each < now]:
            del self._permutations[passed]
        for gone in [each for each in self._epochs if each < epoch]:
            del self._epochs[gone]

"""Which rows each process trains on at each step: a function of seed, step and rank, so no state need be saved."""

from __future__ import annotations

import numpy as np


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

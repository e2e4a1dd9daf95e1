"""A dataset whose shards stay in object storage; each is fetched into a bounded cache before its rows are needed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpu_pipelines.artifacts.dataset import DataFile, Dataset, Manifest, Shard, Split
from gpu_pipelines.artifacts.shard_cache import HeldShard, ShardCache, StoredShard

#: Shards that are fetched ahead if rows are read in order.
_AHEAD = 3


@dataclass(frozen=True)
class ShardPlace:
    """Where the shards of a dataset are, and where they are cached.

    Attributes:
        uri: folder of the dataset in object storage.
        cache: directory of the cache.
        bound: most bytes of all files in it.
        sizes: bytes of each shard by its path in the dataset.
        whole: splits that stay in the cache once they are read.
        fetchers: shards that each process fetches at once.
    """

    uri: str
    cache: str
    bound: int
    sizes: dict[str, int]
    whole: tuple[str, ...] = ()
    fetchers: int = 4


class StreamedSplit(Split):
    """The rows of one split; a shard is mapped into memory as long as its rows are read.

    Args:
        manifest: manifest of the dataset.
        name: `train`, `val` or `test`.
        cache: has the shards.
        stays: whether all shards stay in the cache once they are read.
    """

    def __init__(self, manifest: Manifest, name: str, cache: ShardCache, stays: bool) -> None:
        self.cache = cache
        self._paths = [file.path for file in manifest.splits[name]]
        self._open: dict[int, tuple[HeldShard, Shard]] = {}
        self._stay = frozenset(range(len(self._paths)) if stays else ())
        self._is_expected = False
        self._next: list[int] = []
        self._reading = threading.Lock()
        super().__init__(Path(), manifest, name)

    def _opened(self, directory: Path, files: Sequence[DataFile]) -> list[Shard]:
        return []

    def _shard(self, index: int) -> Shard:
        if index not in self._open:
            following = [each for each in self._next if each not in self._open and each != index]
            held = self.cache.hold(self._paths[index], [self._paths[each] for each in following])
            self._open[index] = (held, Shard(held.path, self.shard_rows[index], self._features))
        return self._open[index][1]

    def expect(self, shards: Sequence[int], now: Sequence[int]) -> None:
        """Sets the shards that are needed next.

        Args:
            shards: in the order in which their rows are needed.
            now: shards whose rows every step reads for now: they stay mapped between the steps.
        """
        self._stay, self._is_expected = frozenset(now), True
        self.cache.ask([])
        self.cache.expect([self._paths[shard] for shard in shards])

    def take(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """As `Split.take`; waits for missing shards."""
        with self._reading:
            shards = list(dict.fromkeys((np.searchsorted(self._starts, rows, side="right") - 1).tolist()))
            # Unless an order was set, rows are read in order.
            self._next = [*shards, *([] if self._is_expected else self._behind(shards[-1]))]
            self._let_go(self._stay.union(shards))
            try:
                return super().take(rows)
            finally:
                if not self._is_expected:
                    self._ask_for_what_is_behind(int(rows[-1]))
                self._let_go(self._stay)

    def _ask_for_what_is_behind(self, row: int) -> None:
        """Keeps the shard of the next row, which would be deleted once it is let go, and has others fetched."""
        following = int(np.searchsorted(self._starts, row + 1, side="right")) - 1
        coming = range(following, min(following + 1 + _AHEAD, len(self._paths)))
        self.cache.ask([self._paths[shard] for shard in coming])

    def columns(self, start: int, stop: int, names: Sequence[str] = ()) -> Iterable[dict[str, np.ndarray]]:
        """As `Split.columns`; do not use the arrays of a shard after asking for the next one."""
        touched = self._touched(start, stop)
        with self._reading:
            try:
                for index in touched:
                    self._next = [each for each in self._behind(index) if each in touched]
                    first, end = self._starts[index : index + 2].tolist()
                    yield from super().columns(max(start, first), min(stop, end), names)
                    self._let_go(self._stay)
            finally:  # the caller may stop early
                self.end_of_order()
                self._let_go(self._stay)

    def sources(self, rows: Sequence[int]) -> list[str]:
        """As `Split.sources`."""
        with self._reading:
            try:
                return super().sources(rows)
            finally:
                self._let_go(self._stay)

    def end_of_order(self) -> None:
        """Says that this thread reads no more rows in order for now, so that nothing is fetched or kept for it."""
        self.cache.ask([])

    def let_go(self) -> None:
        """Lets go of all shards."""
        self._let_go(frozenset())

    def _behind(self, shard: int) -> range:
        return range(shard + 1, min(shard + 1 + _AHEAD, len(self._paths)))

    def _let_go(self, but: frozenset[int]) -> None:
        for index in self._open.keys() - but:
            held, shard = self._open.pop(index)
            del shard  # the mapping before the lock: a mapped file takes disk space even without a name
            held.let_go()


class StreamedDataset(Dataset):
    """A dataset of which this machine has only `dataset.json` and the files that are not shards.

    Args:
        directory: these files.
        place: where the shards are.

    Raises:
        UserError: the directory is not a dataset, or a damaged one.
    """

    def __init__(self, directory: Path, place: ShardPlace) -> None:
        super().__init__(directory)
        self._place = place
        self._cache: ShardCache | None = None

    def split(self, name: str) -> StreamedSplit:
        """One split; its shards are fetched when they are read."""
        if self._cache is None:
            shards = stored_shards(self.manifest, self._place.sizes)
            place = self._place
            self._cache = ShardCache(place.uri, shards, Path(place.cache), place.bound, place.fetchers)
        return StreamedSplit(self.manifest, name, self._cache, stays=name in self._place.whole)


def stored_shards(manifest: Manifest, sizes: Mapping[str, int]) -> dict[str, StoredShard]:
    """The shards of all splits by path."""
    files = [file for split in manifest.splits.values() for file in split]
    return {file.path: StoredShard(sizes[file.path], file.sha256) for file in files if file.path in sizes}

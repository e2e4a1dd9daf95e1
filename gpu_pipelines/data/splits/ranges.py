"""What becomes of the records whose content is in one range of hashes: nobody else has any of the same content."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpu_pipelines.artifacts.dataset import SPLITS
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.splits.split_assignments import CONFLICT, DUPLICATE, IN_TEST_SOURCE, NEAR_DUPLICATE

_TRAIN, _VAL, _TEST = (SPLITS.index(name) for name in ("train", "val", "test"))
#: A record's key is its shard, and its place in that in so many bits; keys ascend in the order of the source.
POSITION_BITS = 40
#: Columns of a row of the exchange of records.
CONTENT, NUMBER, LABEL, KEY, SPLIT = range(5)


def keys_of(shard: int, positions: np.ndarray) -> np.ndarray:
    """The keys of records of a shard."""
    return np.uint64(shard << POSITION_BITS) | positions.astype(np.uint64)


def shards_of(keys: np.ndarray) -> np.ndarray:
    """The shard of each record."""
    return (keys >> np.uint64(POSITION_BITS)).astype(np.int64)


def positions_of(keys: np.ndarray) -> np.ndarray:
    """The place of each record in its shard."""
    return (keys & np.uint64((1 << POSITION_BITS) - 1)).astype(np.int64)


class Shares(NamedTuple):
    """Of a class: how many contents have smaller hashes than those of the range, and how many are in test and val."""

    before: int
    test: int
    val: int


class Range:
    """The records of a range.

    Args:
        rows: as they were exchanged: (records, 5).
        of_test: number of shards of the test source, which come first.
        settings: what is left out, and the split.

    Attributes:
        key: of each record, ascending.
        content: `content_number`.
        codes: what becomes of each.
    """

    def __init__(self, rows: np.ndarray, of_test: int, settings: PrepareSettings) -> None:
        order = np.argsort(rows[:, KEY])
        self.key = rows[order, KEY]
        columns = (CONTENT, NUMBER, LABEL, SPLIT)
        self.content, self._number, self._label, self._split = (rows[order, column] for column in columns)
        self._is_test = self.key < np.uint64(of_test << POSITION_BITS)
        self._settings = settings
        self.codes = np.full(len(rows), _TRAIN, dtype=np.uint8)
        if settings.test_source:
            # Whatever their class.
            tested = np.unique(self.content[self._is_test])
            self.codes[~self._is_test & np.isin(self.content, tested)] = IN_TEST_SOURCE
        if settings.remove_duplicates:
            self._find_duplicates()

    @property
    def is_kept(self) -> np.ndarray:
        """Of each record whether it is not left out so far."""
        return self.codes == _TRAIN

    def _find_duplicates(self) -> None:
        """All but the first record with a number are duplicates."""
        kept = np.flatnonzero(self.is_kept)
        _, firsts = np.unique(self._number[kept], return_index=True)
        is_first = np.zeros(len(kept), dtype=bool)
        is_first[firsts] = True
        self.codes[kept[~is_first]] = DUPLICATE

    def leave_out_near(self, keys: np.ndarray) -> None:
        """Takes note of the near-duplicates."""
        self.codes[np.searchsorted(self.key, keys)] = NEAR_DUPLICATE

    def find_conflicts(self) -> np.ndarray:
        """Records whose content came before in another class: the key of each, and that class: (records, 2).

        Where such content is left out, the first ones are there as well.
        """
        kept = np.flatnonzero(self.is_kept)
        label = self._label[kept]
        _, firsts, which = np.unique(self.content[kept], return_index=True, return_inverse=True)
        other = label[firsts][which]
        is_other = label != other
        if self._settings.label_conflicts == "reject" and is_other.any():
            contents, seconds = np.unique(which[is_other], return_index=True)
            of_second = np.zeros(len(firsts), dtype=np.uint64)
            of_second[contents] = label[is_other][seconds]
            is_conflict = np.isin(which, contents)
            other = np.where(is_other, other, of_second[which])
            self.codes[kept[is_conflict]] = CONFLICT
            is_other = is_conflict
        return np.stack([self.key[kept[is_other]], other[is_other]], axis=1)

    def take_test(self) -> None:
        """All of the test source that is kept is the test split."""
        self.codes[self.is_kept & self._is_test] = _TEST

    def split(self, val_fraction: float, test_fraction: float) -> None:
        """By the hash of the content, or of the group, alone, as `split_at`."""
        kept = self.is_kept
        place = self._split[kept] / 2.0**64
        self.codes[kept] = np.where(
            place < test_fraction, _TEST, np.where(place < test_fraction + val_fraction, _VAL, _TRAIN)
        )

    def classes(self) -> dict[int, int]:
        """How many contents there are of each class; one with several labels counts for that which comes first."""
        labels, counts = np.unique(self._contents()[2], return_counts=True)
        return dict(zip(labels.tolist(), counts.tolist(), strict=True))

    def split_by_class(self, shares: dict[int, Shares]) -> None:
        """Of each class the contents with the smallest hashes are in test, those that follow in val."""
        kept, which, labels = self._contents()
        found, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
        of_class = np.array([shares[label] for label in found.tolist()], dtype=np.int64).reshape(-1, 3)
        before, test, val = of_class[place].T
        rank = np.empty(len(labels), dtype=np.int64)
        # Sorted by class once: there may be as many classes as contents.
        rank[np.argsort(place, kind="stable")] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
        rank += before
        codes = np.where(rank < test, _TEST, np.where(rank < test + val, _VAL, _TRAIN)).astype(np.uint8)
        self.codes[kept] = codes[which]

    def _contents(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The records that are kept, for each which content it has, and each one's class, by ascending hash."""
        kept = np.flatnonzero(self.is_kept)
        _, firsts, which = np.unique(self.content[kept], return_index=True, return_inverse=True)
        return kept, which, self._label[kept][firsts]

"""Split assignments of all records of a source, from the indexes of its shards: duplicates, near-duplicates and splits.

The memory that is needed does not grow with the number of records but for one byte each, and, where near-duplicates
are looked for, what `near_duplicates` needs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gpu_pipelines.artifacts.dataset import SPLITS
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.splits.near_duplicates import Signatures, near_duplicates
from gpu_pipelines.data.splits.record_index import RecordIndex, index_name
from gpu_pipelines.data.splits.split_assignments import (
    CODES,
    CONFLICT,
    CONFLICTS,
    DUPLICATE,
    IN_TEST_SOURCE,
    NEAR,
    NEAR_DUPLICATE,
    UNKNOWN,
    judged_name,
)
from gpu_pipelines.data.units.source_shards import SourceShard
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork

#: Records that are sorted at once.
RECORDS_AT_ONCE = 2_000_000
_TRAIN, _VAL, _TEST = (SPLITS.index(name) for name in ("train", "val", "test"))


def judge(
    work: UnfinishedWork, shards: Sequence[SourceShard], settings: PrepareSettings, check: Callable[[], None]
) -> None:
    """Finds the split of every record and leaves it as the parts `judged/SHARD`.

    Args:
        work: has a part with the index of each shard.
        shards: all there are, those of the test source first.
        settings: what is left out, and the split.
        check: is called again and again; ends it by raising.
    """
    for shard in shards:
        work.require(index_name(shard.number))
        check()
    indexes = [RecordIndex(work.path(index_name(shard.number))) for shard in shards]
    judgement = _Judgement(indexes, np.array([shard.is_test for shard in shards]), check)
    if settings.test_source:
        judgement.keep_apart_from_test()
    if settings.remove_duplicates:
        judgement.find_duplicates()
    near = judgement.find_near_duplicates(settings.near_duplicates) if settings.near_duplicates else {}
    conflicts = judgement.find_conflicts(reject=settings.label_conflicts == "reject")
    test_fraction = settings.test_fraction
    if settings.test_source:
        judgement.take_test()
        test_fraction = 0.0
    if settings.stratify:
        judgement.split_by_class(settings.val_fraction, test_fraction)
    else:
        judgement.split(settings.val_fraction, test_fraction)
    for number in range(len(shards)):
        folder = work.begin(judged_name(number))
        np.save(folder / CODES, judgement.codes[number])
        np.save(folder / CONFLICTS, np.array(conflicts.get(number, []), dtype=np.uint64).reshape(-1, 2))
        lines = [json.dumps({"position": position, **said}) + "\n" for position, said in near.get(number, [])]
        (folder / NEAR).write_text("".join(lines), encoding="utf-8")
        work.commit(judged_name(number), {})


class _Some:
    """Some records of all shards, those with content in one range: arrays of one length, in the source's order."""

    def __init__(self, indexes: Sequence[RecordIndex], slices: Sequence[slice], is_test: np.ndarray) -> None:
        def column(name: str) -> np.ndarray:
            return np.concatenate([getattr(index, name)[part] for index, part in zip(indexes, slices, strict=True)])

        sizes = [part.stop - part.start for part in slices]
        self.shard = np.repeat(np.arange(len(indexes)), sizes)
        self.is_test = np.repeat(is_test, sizes)
        self.position, self.content = column("position"), column("content")
        self.number, self.label = column("number"), column("label")
        order = np.lexsort((self.position, self.shard))
        for name, values in vars(self).items():
            setattr(self, name, values[order])

    def select(self, chosen: np.ndarray) -> _Some:
        """Those for which `chosen` is true."""
        some = object.__new__(_Some)
        for name, values in vars(self).items():
            setattr(some, name, values[chosen])
        return some


class _Judgement:
    """Split assignments on the way. `codes` has, for each shard, one for each of its records."""

    def __init__(self, indexes: Sequence[RecordIndex], is_test: np.ndarray, check: Callable[[], None]) -> None:
        self._indexes = indexes
        self._is_test = is_test
        self._check = check
        self.codes = []
        for index in indexes:
            codes = np.full(int(index.position.max()) + 1 if len(index) else 0, UNKNOWN, dtype=np.uint8)
            codes[index.position] = _TRAIN
            self.codes.append(codes)

    def keep_apart_from_test(self) -> None:
        """Leaves out records of the source whose content is in the test source, whatever their class."""
        for some in self._ranges():
            tested = np.unique(some.content[some.is_test])
            self._set(some.select(~some.is_test & np.isin(some.content, tested)), IN_TEST_SOURCE)

    def take_test(self) -> None:
        """All of the test source that is kept is the test split."""
        for some in self._ranges():
            self._set(some.select(some.is_test & (self._get(some) == _TRAIN)), _TEST)

    def find_duplicates(self) -> None:
        """All but the first record with a number are duplicates."""
        for some in self._ranges():
            kept = some.select(self._get(some) == _TRAIN)
            _, firsts = np.unique(kept.number, return_index=True)
            is_first = np.zeros(len(kept.number), dtype=bool)
            is_first[firsts] = True
            self._set(kept.select(~is_first), DUPLICATE)

    def find_conflicts(self, *, reject: bool) -> dict[int, list[tuple[int, int]]]:
        """By shard: the place of each record whose content came before in another class, and that class.

        Args:
            reject: whether all records of such content are left out; then the first ones are there as well.
        """
        found: dict[int, list[tuple[int, int]]] = {}
        for some in self._ranges():
            kept = some.select(self._get(some) == _TRAIN)
            _, firsts, which = np.unique(kept.content, return_index=True, return_inverse=True)
            other = kept.label[firsts][which]
            is_other = kept.label != other
            if reject and is_other.any():
                contents, seconds = np.unique(which[is_other], return_index=True)
                of_second = np.zeros(len(firsts), dtype=np.uint64)
                of_second[contents] = kept.label[is_other][seconds]
                is_conflict = np.isin(which, contents)
                other = np.where(is_other, other, of_second[which])
                self._set(kept.select(is_conflict), CONFLICT)
                is_other = is_conflict
            for at in np.flatnonzero(is_other).tolist():
                found.setdefault(int(kept.shard[at]), []).append((int(kept.position[at]), int(other[at])))
        return found

    def find_near_duplicates(self, threshold: float) -> dict[int, list[tuple[int, dict[str, object]]]]:
        """Near-duplicates by shard: the place of each, and what it is like."""
        # Usable records are numbered in the order of the source, as their signatures are.
        positions = [np.sort(index.position) for index in self._indexes]
        starts = np.cumsum([0] + [len(index) for index in self._indexes])
        kept = np.concatenate([codes[at] == _TRAIN for codes, at in zip(self.codes, positions, strict=True)])
        signatures = Signatures([index.signatures() for index in self._indexes])
        found: dict[int, list[tuple[int, dict[str, object]]]] = {}
        for near in near_duplicates(signatures, threshold, kept):
            self._check()
            shard, row = _place(starts, near.record)
            other, other_row = _place(starts, near.of)
            position = int(positions[shard][row])
            self.codes[shard][position] = NEAR_DUPLICATE
            like = self._indexes[other].sources()[other_row].as_py()
            found.setdefault(shard, []).append((position, {"duplicate_of": like, "similarity": near.similarity}))
        return found

    def split(self, val_fraction: float, test_fraction: float) -> None:
        """By the hash of the content alone, as `split_at`."""
        for some in self._ranges():
            kept = some.select(self._get(some) == _TRAIN)
            place = kept.content / 2.0**64
            code = np.where(place < test_fraction, _TEST, np.where(place < test_fraction + val_fraction, _VAL, _TRAIN))
            self._set(kept, code)

    def split_by_class(self, val_fraction: float, test_fraction: float) -> None:
        """Of each class the contents with the smallest hashes are in test, those that follow in val.

        Content with several labels counts for the one that comes first, so that all of it is in one split.
        """
        totals: Counter[int] = Counter()
        for _, _, labels in self._contents():
            totals.update(labels.tolist())
        tests, vals = {}, {}
        for label, total in totals.items():
            tests[label], vals[label] = _shares(total, val_fraction, test_fraction)
        so_far: Counter[int] = Counter()
        for kept, which, labels in self._contents():
            codes = np.empty(len(labels), dtype=np.uint8)
            for label in np.unique(labels).tolist():
                here = np.flatnonzero(labels == label)
                rank = so_far[label] + np.arange(len(here))
                codes[here] = np.where(
                    rank < tests[label], _TEST, np.where(rank < tests[label] + vals[label], _VAL, _TRAIN)
                )
                so_far[label] += len(here)
            # Set only now: what is not in train would not be looked at again.
            self._set(kept, codes[which])

    def _contents(self) -> Iterator[tuple[_Some, np.ndarray, np.ndarray]]:
        """In the order of their hashes: records that are kept, for each which content it has, and each one's class."""
        for some in self._ranges():
            kept = some.select(self._get(some) == _TRAIN)
            _, firsts, which = np.unique(kept.content, return_index=True, return_inverse=True)
            yield kept, which, kept.label[firsts]

    def _ranges(self) -> Iterator[_Some]:
        """All records, in ranges of their content's hash that ascend."""
        total = sum(len(index) for index in self._indexes)
        ranges = max(1, -(-total // RECORDS_AT_ONCE))
        edges = [((number << 64) // ranges) for number in range(ranges)]
        places = [
            [int(np.searchsorted(index.content, np.uint64(edge))) for edge in edges] + [len(index)]
            for index in self._indexes
        ]
        for number in range(ranges):
            self._check()
            yield _Some(self._indexes, [slice(at[number], at[number + 1]) for at in places], self._is_test)

    def _get(self, some: _Some) -> np.ndarray:
        found = np.empty(len(some.position), dtype=np.uint8)
        for shard in np.unique(some.shard).tolist():
            here = some.shard == shard
            found[here] = self.codes[shard][some.position[here]]
        return found

    def _set(self, some: _Some, code: int | np.ndarray) -> None:
        codes = np.broadcast_to(np.asarray(code, dtype=np.uint8), some.position.shape)
        for shard in np.unique(some.shard).tolist():
            here = some.shard == shard
            self.codes[shard][some.position[here]] = codes[here]


def _place(starts: np.ndarray, record: int) -> tuple[int, int]:
    """The shard of a record and its row in it."""
    shard = int(np.searchsorted(starts, record, side="right")) - 1
    return shard, record - int(starts[shard])


def _shares(total: int, val_fraction: float, test_fraction: float) -> tuple[int, int]:
    """How many of a class are in test and in val: the nearest number, and one of each where there are three.

    None is in test where its fraction is 0.
    """
    least = 1 if total >= 3 else 0
    test = max(least, round(test_fraction * total)) if test_fraction else 0
    val = max(least, min(round(val_fraction * total), total - test - least))
    return test, val

"""Split assignments of all records of a source, from the indexes of its shards: duplicates, near-duplicates and splits.

Records go to the pieces that have a range of hashes of contents, and what becomes of them goes back to the shards.
Which ranges there are depends on the source alone. A worker holds the records of one range, or of some shards; what is
common to all is the number of contents of each class in each range.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.data.splits.judgement_plan import Plan
from gpu_pipelines.data.splits.near_duplicates import Signatures, near_duplicates
from gpu_pipelines.data.splits.near_pieces import THOUSANDTHS, NearPieces
from gpu_pipelines.data.splits.ranges import Range, Shares, keys_of, positions_of, shards_of
from gpu_pipelines.data.splits.record_index import index_in
from gpu_pipelines.data.splits.split_assignments import CODES, CONFLICTS, NEAR, UNKNOWN, judged_name
from gpu_pipelines.data.units.exchange import Exchange
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork
from gpu_pipelines.distributed.pieces import Executor, WorkOptions


def judge(plan: Plan, work: UnfinishedWork, executor: Executor, check: Callable[[], None]) -> None:
    """Finds the split of every record and leaves it as the parts `judged/SHARD`.

    Args:
        plan: what is judged.
        work: has a part with the index of each shard.
        executor: does it.
        check: is called again and again; ends it by raising.
    """
    if all(work.has(judged_name(shard)) for shard in range(plan.shards)):
        return
    options = WorkOptions(check=check, named=lambda piece: f"{piece[0]} {piece[1]}")

    def each(pieces: Iterable[tuple[str, int, Any]]) -> Iterator[tuple[int, Any]]:
        return executor.map(Judge, (plan,), pieces, options)

    def all_of(kind: str, number: int, known: Any = None) -> list[Any]:
        found = dict(each((kind, piece, known) for piece in range(number)))
        return [found[piece] for piece in range(number)]

    all_of("records", plan.groups)
    if plan.settings.near_duplicates:
        all_of("kept", plan.ranges)
        if plan.near_parts == 1:
            all_of("near", 1)
        else:
            all_of("bands", plan.groups)
            for round_ in count():
                all_of("round", plan.near_parts, round_)
                if not sum(all_of("states", plan.groups, round_)):
                    break
            all_of("found", plan.near_parts, round_)
            all_of("near-of", plan.groups)
    shares: list[Any] = [None] * plan.ranges
    if plan.settings.stratify:
        shares = _shares_by_range(all_of("classes", plan.ranges), *plan.shares)
    list(each(("assigned", number, shares[number]) for number in range(plan.ranges)))
    all_of("judged", plan.groups)


def _shares_by_range(classes: list[dict[int, int]], val: float, test: float) -> list[dict[int, Shares]]:
    totals: Counter[int] = Counter()
    for found in classes:
        totals.update(found)
    of_class = {label: _shares(total, val, test) for label, total in totals.items()}
    before: Counter[int] = Counter()
    shares = []
    for found in classes:
        shares.append({label: Shares(before[label], *of_class[label]) for label in found})
        before.update(found)
    return shares


def _shares(total: int, val_fraction: float, test_fraction: float) -> tuple[int, int]:
    """How many of a class are in test and in val: the nearest number, and one of each where there are three.

    None is in test where its fraction is 0.
    """
    least = 1 if total >= 3 else 0
    test = max(least, round(test_fraction * total)) if test_fraction else 0
    val = max(least, min(round(val_fraction * total), total - test - least))
    return test, val


class Judge:
    """Does pieces of a judgement: `(kind, number, what else it has to know)`."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._staging = tempfile.TemporaryDirectory(prefix="gpu-pipelines-judging-")
        work = self._work = UnfinishedWork(plan.uri, Path(self._staging.name))
        self._read: dict[int, tuple[Any, np.ndarray]] = {}
        groups, ranges = plan.groups, plan.ranges
        self._records = Exchange(work, "records", 5, groups, ranges)
        self._kept = Exchange(work, "kept", 2, ranges, groups)
        near_senders = 1 if plan.near_parts == 1 else groups
        self._near = Exchange(work, "near", 2, near_senders, ranges)
        self._near_of = Exchange(work, "near-of", 3, near_senders, groups)
        self._near_pieces = NearPieces(plan, work, self._kept, self._near, self._near_of)
        self._assigned = Exchange(work, "assigned", 2, ranges, groups)
        self._conflicts = Exchange(work, "conflicts", 2, ranges, groups)

    def __call__(self, piece: tuple[str, int, Any]) -> Any:
        kind, number, known = piece
        if kind == "records":
            return self._send_records(number)
        if kind == "kept":
            return self._send_kept(number)
        if kind == "near":
            return self._find_near()
        if kind in NearPieces.kinds:
            return self._near_pieces.do(kind, number, known)
        if kind == "classes":
            return self._range(number)[0].classes()
        if kind == "assigned":
            return self._assign(number, known)
        return self._leave(number)

    def _send_records(self, group: int) -> None:
        """What is known of the records of some shards goes to the ranges that they are in."""
        if self._records.is_sent(group):
            return
        rows = []
        for shard in self._plan.shards_in(group):
            index = index_in(self._work, shard)
            key = keys_of(shard, np.asarray(index.position))
            rows.append(np.stack([index.content, index.number, index.label, key, index.split], axis=1))
        table = np.concatenate(rows)
        self._records.send(group, table, self._plan.range_of(table[:, 0]))

    def _first_look(self, number: int) -> Range:
        return Range(self._records.received(number), self._plan.of_test, self._plan.settings)

    def _send_kept(self, number: int) -> None:
        """Which records are looked at for near-duplicates."""
        if self._kept.is_sent(number):
            return
        some = self._first_look(number)
        rows = np.stack([some.key, some.content], axis=1)[some.is_kept]
        self._kept.send(number, rows, self._plan.group_of(some.key[some.is_kept]))

    def _range(self, number: int) -> tuple[Range, np.ndarray]:
        """The records of a range but for those that are left out, and which are in conflict."""
        some, settings = self._first_look(number), self._plan.settings
        if settings.near_duplicates:
            some.leave_out_near(self._near.received(number)[:, 0])
        conflicts = some.find_conflicts()
        if settings.test_source:
            some.take_test()
        return some, conflicts

    def _assign(self, number: int, shares: dict[int, Shares] | None) -> None:
        if self._assigned.is_sent(number) and self._conflicts.is_sent(number):
            return
        some, conflicts = self._range(number)
        if shares is None:
            some.split(*self._plan.shares)
        else:
            some.split_by_class(shares)
        self._conflicts.send(number, conflicts, self._plan.group_of(conflicts[:, 0]))
        rows = np.stack([some.key, some.codes.astype(np.uint64)], axis=1)
        self._assigned.send(number, rows, self._plan.group_of(some.key))

    def _find_near(self) -> None:
        if self._near.is_sent(0) and self._near_of.is_sent(0):
            return
        indexes = [index_in(self._work, shard) for shard in range(self._plan.shards)]
        # Usable records are numbered in the order of the source, as their signatures are.
        keys = np.concatenate([keys_of(shard, np.sort(index.position)) for shard, index in enumerate(indexes)])
        received = np.concatenate([self._kept.received(group) for group in range(self._plan.groups)])
        kept = np.isin(keys, received[:, 0])
        signatures = Signatures([index.signatures() for index in indexes])
        found = list(near_duplicates(signatures, self._plan.settings.near_duplicates, kept))
        rows = [(int(keys[n.record]), int(keys[n.of]), round(n.similarity * THOUSANDTHS)) for n in found]
        of = np.array(rows, dtype=np.uint64).reshape(-1, 3)
        self._near_of.send(0, of, self._plan.group_of(of[:, 0]))
        here = received[np.isin(received[:, 0], of[:, 0])]
        self._near.send(0, here, self._plan.range_of(here[:, 1]))

    def _sources(self, shard: int) -> tuple[Any, np.ndarray]:
        """Where the usable records of a shard are, for people, and their places in it."""
        if shard not in self._read:
            index = index_in(self._work, shard)
            self._read[shard] = (index.sources(), np.sort(index.position))
        return self._read[shard]

    def _leave(self, group: int) -> None:
        """Leaves what becomes of the records of some shards."""
        assigned, conflicts = self._assigned.received(group), self._conflicts.received(group)
        near = self._near_of.received(group) if self._plan.settings.near_duplicates else np.zeros((0, 3), np.uint64)
        for shard in self._plan.shards_in(group):
            if self._work.has(judged_name(shard)):
                continue
            rows, others, like = (table[shards_of(table[:, 0]) == shard] for table in (assigned, conflicts, near))
            positions = positions_of(rows[:, 0])
            codes = np.full(int(positions.max()) + 1 if len(positions) else 0, UNKNOWN, dtype=np.uint8)
            codes[positions] = rows[:, 1]
            folder = self._work.begin(judged_name(shard))
            np.save(folder / CODES, codes)
            others = np.stack([positions_of(others[:, 0]).astype(np.uint64), others[:, 1]], axis=1)
            np.save(folder / CONFLICTS, others)
            (folder / NEAR).write_text("".join(self._told(like[np.argsort(like[:, 0])])), encoding="utf-8")
            self._work.commit(judged_name(shard), {})

    def _told(self, near: np.ndarray) -> Iterator[str]:
        """Lines on near-duplicates: the place of each, and what it is like."""
        for position, of, thousandths in zip(positions_of(near[:, 0]), near[:, 1:2], near[:, 2].tolist(), strict=True):
            sources, places = self._sources(int(shards_of(of)[0]))
            row = int(np.searchsorted(places, np.uint64(positions_of(of)[0])))
            said = {"duplicate_of": sources[row].as_py(), "similarity": thousandths / THOUSANDTHS}
            yield json.dumps({"position": int(position), **said}) + "\n"

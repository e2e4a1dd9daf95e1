"""Near-duplicates of more texts than one process can hold, in pieces: parts of the bands, and groups of shards."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from gpu_pipelines.data.splits import near_rounds
from gpu_pipelines.data.splits.judgement_plan import Plan
from gpu_pipelines.data.splits.near_duplicates import SIGNATURE_LENGTH, bands_for, hashes
from gpu_pipelines.data.splits.ranges import positions_of, shards_of
from gpu_pipelines.data.splits.record_index import index_in
from gpu_pipelines.data.units.exchange import Exchange
from gpu_pipelines.data.units.unfinished_work import UnfinishedWork

#: Shards whose signatures are open at once.
_SHARDS_AT_ONCE = 64
#: Similarities are exchanged as whole numbers of these.
THOUSANDTHS = 1000


class NearPieces:
    """Does the pieces.

    Args:
        plan: what is judged.
        work: has the indexes.
        kept: from ranges to groups: keys and contents of the records that are looked at.
        near: to ranges: keys and contents of those that are left out.
        near_of: to groups: of those the key, that of what each is like, and thousandths of similarity.
    """

    kinds = ("bands", "round", "states", "found", "near-of")

    def __init__(self, plan: Plan, work: UnfinishedWork, kept: Exchange, near: Exchange, near_of: Exchange) -> None:
        self._plan, self._work = plan, work
        self._kept, self._near, self._near_of = kept, near, near_of
        self._threshold = plan.settings.near_duplicates
        groups, parts = plan.groups, plan.near_parts
        self._bands = Exchange(work, "bands", 3, groups, parts)
        self._found = Exchange(work, "near-found", 4, parts, groups)
        self._opened = lru_cache(_SHARDS_AT_ONCE)(self._open)

    def do(self, kind: str, number: int, round_: int) -> Any:
        """Does a piece, unless it is done."""
        if kind == "bands":
            return self._send_bands(number)
        if kind == "round":
            return self._send_verdicts(number, round_)
        if kind == "states":
            return self._send_states(number, round_)
        if kind == "found":
            return self._send_found(number, round_)
        return self._send_near(number)

    def _said_in(self, round_: int) -> Exchange:
        """From parts to groups: key, what the part says of it, and which part it is."""
        return Exchange(self._work, f"said-{round_}", 3, self._plan.near_parts, self._plan.groups)

    def _states_after(self, round_: int) -> Exchange:
        """From groups to parts: key and state."""
        return Exchange(self._work, f"states-{round_}", 2, self._plan.groups, self._plan.near_parts)

    def _send_bands(self, group: int) -> None:
        """The values of the bands of the records of some shards go to the parts that have them."""
        if self._bands.is_sent(group):
            return
        keys = np.sort(self._kept.received(group)[:, 0])
        signatures, rows = self._signatures(keys), [np.zeros((0, 3), np.uint64)]
        for band, columns in enumerate(bands_for(self._threshold)):
            values = hashes(signatures[:, columns])
            rows.append(np.stack([values, np.full(len(keys), band, dtype=np.uint64), keys], axis=1))
        table = np.concatenate(rows)
        # The low bits are as good as any, and ranges of contents have nothing to do with them.
        self._bands.send(group, table, (table[:, 0] % np.uint64(self._plan.near_parts)).astype(np.int64))

    def _groups(self, part: int) -> near_rounds.Groups:
        return near_rounds.Groups(self._bands.received(part))

    def _states(self, groups: near_rounds.Groups, part: int, round_: int) -> np.ndarray:
        known = self._states_after(round_).received(part) if round_ >= 0 else np.zeros((0, 2), np.uint64)
        return groups.states(known)

    def _send_verdicts(self, part: int, round_: int) -> None:
        exchange = self._said_in(round_)
        if exchange.is_sent(part):
            return
        groups = self._groups(part)
        said = near_rounds.verdicts(groups, self._states(groups, part, round_ - 1), self._signatures, self._threshold)
        rows = np.column_stack([said, np.full(len(said), part, dtype=np.uint64)])
        exchange.send(part, rows, self._plan.group_of(said[:, 0]))

    def _send_states(self, group: int, round_: int) -> int:
        """What the parts together say of the records of some shards; how many of these are open."""
        said = self._said_in(round_).received(group)
        states, left = near_rounds.states_of(said[:, :2])
        if not (exchange := self._states_after(round_)).is_sent(group):
            exchange.send(group, np.stack([said[:, 0], states], axis=1), said[:, 2].astype(np.int64))
        return left

    def _send_found(self, part: int, round_: int) -> None:
        if self._found.is_sent(part):
            return
        groups = self._groups(part)
        states = self._states(groups, part, round_)
        rows = near_rounds.found(groups, states, self._signatures, self._threshold)
        self._found.send(part, rows, self._plan.group_of(rows[:, 0]))

    def _send_near(self, group: int) -> None:
        if self._near.is_sent(group) and self._near_of.is_sent(group):
            return
        rows = near_rounds.first_found(self._found.received(group))
        same = [round(round(int(number) / SIGNATURE_LENGTH, 3) * THOUSANDTHS) for number in rows[:, 3]]
        of = np.column_stack([rows[:, 0], rows[:, 2], np.array(same, dtype=np.uint64)])
        self._near_of.send(group, of, self._plan.group_of(of[:, 0]))
        kept = self._kept.received(group)
        here = kept[np.isin(kept[:, 0], rows[:, 0])]
        self._near.send(group, here, self._plan.range_of(here[:, 1]))

    def _signatures(self, keys: np.ndarray) -> np.ndarray:
        """The signatures of records by their keys."""
        found = np.empty((len(keys), SIGNATURE_LENGTH), dtype=np.uint32)
        shards = shards_of(keys)
        for shard in np.unique(shards).tolist():
            here = np.flatnonzero(shards == shard)
            positions, signatures = self._opened(shard)
            found[here] = signatures[np.searchsorted(positions, positions_of(keys[here]).astype(np.uint64))]
        return found

    def _open(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """The places of the usable records of a shard, ascending, and their signatures in that order."""
        index = index_in(self._work, shard)
        return np.sort(index.position), index.signatures()

"""The near-duplicates of texts that are too many for one process: what it would find, by rounds over parts of bands.

A record is left out if it is like one that comes before it and is kept, where both share a band. A part has all records
of some values of bands. In each round it says of its records which are free: like none before them that is kept or
still open. One that is free in all of its parts is kept, one that is like a kept one is left out, and the rest is open
until the next round. The first of those that are open is always settled, so the rounds end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

#: What a part says of a record, the stronger the larger; of all records that are not free, it is their state as well.
FREE, OPEN, KEPT, NEAR = range(4)
#: Records of groups that are compared at once: their signatures are in memory.
_RECORDS_AT_ONCE = 200_000

#: Gives the signatures of records by their keys: (records, SIGNATURE_LENGTH).
SignaturesOf = Callable[[np.ndarray], np.ndarray]


class Groups:
    """Records that share values of bands: those of a group follow one another, in the order of the source.

    Args:
        rows: the value, the band and the key of each: (records, 3).

    Attributes:
        band: of each record the number of the band.
        key: of each record its key.
    """

    def __init__(self, rows: np.ndarray) -> None:
        rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
        begins = np.append(True, (rows[1:, :2] != rows[:-1, :2]).any(axis=1)) if len(rows) else np.zeros(0, bool)
        group = np.cumsum(begins) - 1
        sizes = np.bincount(group) if len(rows) else np.zeros(0, np.int64)
        shares = sizes[group] > 1 if len(rows) else np.zeros(0, bool)
        self.band, self.key = rows[shares, 1], rows[shares, 2]
        sizes = sizes[sizes > 1]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def chunks(self) -> Iterator[tuple[slice, list[slice]]]:
        """Groups that follow one another: where all of their records are, and, from there, those of each."""
        first = 0
        while first < len(self._starts) - 1:
            start = self._starts[first]
            last = max(first + 1, int(np.searchsorted(self._starts, start + _RECORDS_AT_ONCE, side="right")) - 1)
            edges = (self._starts[first : last + 1] - start).tolist()
            yield (
                slice(int(start), int(self._starts[last])),
                [slice(*pair) for pair in pairwise(edges)],
            )
            first = last

    def states(self, known: np.ndarray) -> np.ndarray:
        """Of each record its state, from rows of keys and states: (records, 2); without any, all are open."""
        if not len(known):
            return np.full(len(self.key), OPEN, dtype=np.uint8)
        known = known[np.argsort(known[:, 0], kind="stable")]
        found: np.ndarray = known[np.searchsorted(known[:, 0], self.key), 1].astype(np.uint8)
        return found


def verdicts(groups: Groups, states: np.ndarray, signatures_of: SignaturesOf, threshold: float) -> np.ndarray:
    """What a part says of each of its records: (records, 2), each key once.

    Args:
        groups: of the part.
        states: of the records.
        signatures_of: gives their signatures.
        threshold: similarity from which two are near-duplicates.
    """
    said = np.where(states == OPEN, FREE, states).astype(np.uint8)
    for whole, parts in groups.chunks():
        if not (states[whole] == OPEN).any():
            continue
        signatures = signatures_of(groups.key[whole])
        here = said[whole]
        pairs = np.array([part.start for part in parts if part.stop - part.start == 2], dtype=np.int64)
        alike = _alike(signatures[pairs], signatures[pairs + 1], threshold) & (here[pairs + 1] == FREE)
        alike &= here[pairs] != NEAR
        here[pairs[alike] + 1] = np.where(here[pairs[alike]] == KEPT, NEAR, OPEN)
        for part in parts:
            if part.stop - part.start > 2:
                _settle(here[part], signatures[part], threshold)
    keys, strongest, _ = _strongest(groups.key, said)
    return np.stack([keys, strongest], axis=1)


def _strongest(key: np.ndarray, said: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each key once, the strongest of what is said of it, and of each row the place of its key among them."""
    keys, which = np.unique(key, return_inverse=True)
    strongest = np.zeros(len(keys), dtype=np.uint64)
    np.maximum.at(strongest, which, said.astype(np.uint64))
    return keys, strongest, which


def _settle(said: np.ndarray, signatures: np.ndarray, threshold: float) -> None:
    """Goes through one group, and changes in place what is said of its records."""
    for place in range(len(said) - 1):
        if said[place] == NEAR:
            continue
        # One that is kept settles those that were only not free; one that is open makes others not free.
        below = OPEN if said[place] == KEPT else FREE
        later = place + 1 + np.flatnonzero(said[place + 1 :] <= below)
        alike = later[_alike(signatures[later], signatures[place], threshold)]
        said[alike] = NEAR if said[place] == KEPT else OPEN


def states_of(said: np.ndarray) -> tuple[np.ndarray, int]:
    """The states of records from what all parts have said of them, and how many are open.

    Args:
        said: keys and what is said: (rows, 2).

    Returns:
        The state of each row's record.
    """
    _, strongest, which = _strongest(said[:, 0], said[:, 1])
    strongest[strongest == FREE] = KEPT
    return strongest[which], int((strongest == OPEN).sum())


def found(groups: Groups, states: np.ndarray, signatures_of: SignaturesOf, threshold: float) -> np.ndarray:
    """For each record that is left out, the first kept one of each band that is like it.

    Args:
        groups: of a part.
        states: of its records, all settled.
        signatures_of: gives their signatures.
        threshold: similarity from which two are near-duplicates.

    Returns:
        Keys, bands, keys of the others, and in how many places the signatures are the same: (rows, 4).
    """
    rows = [np.zeros((0, 4), dtype=np.uint64)]
    for whole, parts in groups.chunks():
        if not (states[whole] == NEAR).any():
            continue
        keys, bands, here = groups.key[whole], groups.band[whole], states[whole]
        signatures = signatures_of(keys)
        for part in parts:
            rows += _found_in(keys[part], bands[part], here[part], signatures[part], threshold)
    return np.concatenate(rows)


def _found_in(
    keys: np.ndarray, bands: np.ndarray, states: np.ndarray, signatures: np.ndarray, threshold: float
) -> Iterator[np.ndarray]:
    left = states == NEAR
    for place in np.flatnonzero(states == KEPT).tolist():
        later = place + 1 + np.flatnonzero(left[place + 1 :])
        same = (signatures[later] == signatures[place]).sum(axis=1)
        alike = same / signatures.shape[1] >= threshold
        named = later[alike]
        left[named] = False
        of = np.full(len(named), keys[place], dtype=np.uint64)
        yield np.stack([keys[named], bands[named], of, same[alike].astype(np.uint64)], axis=1)


def first_found(rows: np.ndarray) -> np.ndarray:
    """Of each record the row with its first band: that is the one which a process finds that has all records."""
    rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
    _, firsts = np.unique(rows[:, 0], return_index=True)
    return rows[firsts]


def _alike(some: np.ndarray, others: np.ndarray, threshold: float) -> np.ndarray:
    found: np.ndarray = (some == others).mean(axis=1) >= threshold
    return found

"""Texts that are nearly the same: MinHash signatures of their words, and locality-sensitive hashing to find the pairs.

Broder, "On the resemblance and containment of documents" (1997); the number of bands and rows is datasketch's choice
for the threshold, as in its `MinHashLSH`, which itself keeps all in memory: some kilobytes for each text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpu_pipelines.tasks.marks import MARKS

#: Permutations of a signature: the standard error of an estimate is at most 0.044.
SIGNATURE_LENGTH = 128
#: Words that follow one another and count as one feature of a text.
WORDS_OF_A_SHINGLE = 5
#: Of false positives and false negatives: the former only cost a comparison.
_WEIGHTS = (0.02, 0.98)
#: Scripts without blanks between words: cut at their marks, a text of them has more pieces to be known again by.
_WITHOUT_BLANKS = ("THAI", "LAO", "KHMER", "MYANMAR")
_MARKS = "".join(mark for mark in MARKS if not unicodedata.name(mark, "").startswith(_WITHOUT_BLANKS))
_WORD = re.compile(rf"\w[\w{_MARKS}]*")


class Signer:
    """Signatures of texts."""

    def __init__(self) -> None:
        from datasketch import MinHash

        # Made once: the permutations are random numbers of a fixed seed.
        self._empty = MinHash(num_perm=SIGNATURE_LENGTH, seed=1, scheme="affine32")

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray]:
        """A signature for each text; texts of fewer words than a shingle are one."""
        return [self._signature(text) for text in texts]

    def _signature(self, text: str) -> np.ndarray:
        sketch = self._empty.copy()
        sketch.update_batch(sorted(shingles(text)))
        return sketch.digest().astype(np.uint32)


def shingles(text: str) -> set[bytes]:
    """The sequences of five words of a text, without case and punctuation."""
    words = _WORD.findall(text.lower())
    if not words:
        return {text.encode("utf-8", "surrogatepass")}
    last = max(1, len(words) - WORDS_OF_A_SHINGLE + 1)
    return {" ".join(words[start : start + WORDS_OF_A_SHINGLE]).encode() for start in range(last)}


class NearDuplicate(NamedTuple):
    """A record that is left out, the one that is kept in its place, and how similar they are, between 0 and 1."""

    record: int
    of: int
    similarity: float


class Signatures:
    """The signatures of all records in the order of the source, in files.

    Args:
        parts: arrays (records, SIGNATURE_LENGTH), mapped into memory.
    """

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0] + [len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, record: int) -> np.ndarray:
        part = int(np.searchsorted(self._starts, record, side="right")) - 1
        found: np.ndarray = self._parts[part][record - self._starts[part]]
        return found

    def band(self, columns: slice) -> np.ndarray:
        """A hash of 64 bits of some columns of each signature."""
        return np.concatenate([hashes(part[:, columns]) for part in self._parts] or [np.zeros(0, np.uint64)])


def near_duplicates(signatures: Signatures, threshold: float, kept: np.ndarray) -> Iterator[NearDuplicate]:
    """The records that are similar to one that comes before them and is kept.

    Held in memory are some 60 bytes for each record, and those that share a band with another.

    Args:
        signatures: of all records, in the order of the source.
        threshold: estimated Jaccard similarity from which two texts are near-duplicates, between 0 and 1.
        kept: for each record whether it counts at all.
    """
    groups = _shared_bands(signatures, threshold, kept)
    members: dict[tuple[int, int], list[int]] = defaultdict(list)
    for record, shared in sorted(groups.items()):
        own = signatures[record]
        asked: set[int] = set()
        found = None
        for group in shared:
            for other in members[group]:
                if other not in asked:
                    asked.add(other)
                    similarity = float(np.mean(signatures[other] == own))
                    if similarity >= threshold:
                        found = NearDuplicate(record, other, round(similarity, 3))
                        break
            if found:
                break
        if found:
            yield found
        else:
            for group in shared:
                members[group].append(record)


def bands_for(threshold: float) -> list[slice]:
    """The columns of a signature that make each band."""
    from datasketch import MinHashLSH

    chosen = MinHashLSH(threshold=threshold, num_perm=SIGNATURE_LENGTH, weights=_WEIGHTS)
    return [slice(band * chosen.r, (band + 1) * chosen.r) for band in range(chosen.b)]


def _shared_bands(signatures: Signatures, threshold: float, kept: np.ndarray) -> dict[int, list[tuple[int, int]]]:
    """For each record that shares a band with another: the bands that it shares, each with the number of its group."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    candidates = np.flatnonzero(kept)
    for band, columns in enumerate(bands_for(threshold)):
        values = signatures.band(columns)[candidates]
        by_hash = np.argsort(values, kind="stable")
        ordered = values[by_hash]
        same_as_next = np.append(ordered[1:] == ordered[:-1], False)
        shares = same_as_next | np.append(False, same_as_next[:-1])
        group = np.cumsum(~np.append(False, same_as_next[:-1]))
        for record, number in zip(candidates[by_hash[shares]].tolist(), group[shares].tolist(), strict=True):
            found[record].append((band, number))
    return found


def hashes(columns: np.ndarray) -> np.ndarray:
    """One number of 64 bits for each row (FNV-1a by whole numbers)."""
    found = np.full(len(columns), 0xCBF29CE484222325, dtype=np.uint64)
    for column in columns.T:
        found = (found ^ column.astype(np.uint64)) * np.uint64(0x100000001B3)
    return found

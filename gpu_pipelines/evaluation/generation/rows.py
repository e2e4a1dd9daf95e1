"""Which prompts of a split are answered, and which of them at the same time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from gpu_pipelines.evaluation.generation.port import Pair

#: Prompts that one process answers together: few enough that several processes share the rows evenly.
UNIT = 32
_KEY = b"generate_rows"


def sampled(pairs: Sequence[Pair], most: int) -> list[Pair]:
    """A sample of the prompts, by a hash of their content; the same at each call.

    Chosen by content and not by place, most of them stay the same when rows are added.

    Args:
        pairs: of a split.
        most: largest number; 0 for all.
    """
    if not most or len(pairs) <= most:
        return list(pairs)
    hashed = sorted(range(len(pairs)), key=lambda number: (_hash(pairs[number]), number))
    return [pairs[number] for number in sorted(hashed[:most])]


def units_of(pairs: Sequence[Pair]) -> list[np.ndarray]:
    """Numbers of the prompts that are answered together: of similar length, the longest first.

    A unit is the same however many processes there are, so that rounding is.
    """
    lengths = np.array([len(pair.prompt) + len(pair.reference) for pair in pairs])
    order = np.argsort(-lengths, kind="stable")
    return [order[start : start + UNIT] for start in range(0, len(order), UNIT)]


def _hash(pair: Pair) -> bytes:
    digest = hashlib.blake2b(key=_KEY, digest_size=16)
    for tokens in (pair.prompt, pair.reference):
        digest.update(len(tokens).to_bytes(8, "little") + tokens.astype("<i4").tobytes())
    return digest.digest()

"""Which split a record belongs to, from its content alone.

A record keeps its split when others are added or removed, and equal records share one, so that no test row can be a
training row as well.
"""

from __future__ import annotations

import hashlib


def content_number(content: bytes, seed: int = 0) -> int:
    """A number of 64 bits that is the same for equal content, and spread evenly for different one.

    Args:
        content: the record's bytes.
        seed: another seed gives another, independent number.
    """
    digest = hashlib.blake2b(content, digest_size=8, key=seed.to_bytes(8, "big", signed=True)).digest()
    return int.from_bytes(digest, "big")


def split_at(number: int, val_fraction: float, test_fraction: float) -> str:
    """The split of the content with this `content_number`: `train`, `val` or `test`.

    Args:
        number: that of the record.
        val_fraction: share of all records that go to `val`, between 0 and 1.
        test_fraction: share that goes to `test`.
    """
    position = number / 2**64
    if position < test_fraction:
        return "test"
    return "val" if position < test_fraction + val_fraction else "train"

"""Which split a record belongs to, from its content alone, or from the group that it is of.

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


def split_number(content: int, group: str, seed: int = 0) -> int:
    """The number that decides on a record's split: that of its group, else that of its content.

    Args:
        content: its `content_number`.
        group: its value of the column `group_by`; empty for none.
        seed: as for the content.
    """
    # Beside the contents: a group that is called as a text is another number.
    return content_number(f"group {group}".encode("utf-8", "surrogatepass"), seed) if group else content


def split_at(number: int, val_fraction: float, test_fraction: float) -> str:
    """The split of a record: `train`, `val` or `test`.

    Args:
        number: its `split_number`.
        val_fraction: share of all records that go to `val`, between 0 and 1.
        test_fraction: share that goes to `test`.
    """
    position = number / 2**64
    if position < test_fraction:
        return "test"
    return "val" if position < test_fraction + val_fraction else "train"

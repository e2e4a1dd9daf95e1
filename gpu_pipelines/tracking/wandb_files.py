"""Reads the files that Weights & Biases keeps of an offline run; its client writes them, but cannot read them.

The format is that of LevelDB's log: blocks of 32 KiB, in which a record may be cut into parts, each with a checksum, a
length and its kind. Source: https://github.com/google/leveldb/blob/main/doc/log_format.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _HEADER = 32 * 1024, 7
#: The beginning of a file, with a version.
_MAGIC = b":W&B"
#: The kinds of a whole record, and of the last part of a cut one.
_FULL, _LAST = 1, 4


def rows_in(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a run's curves, in the order of writing; a row that a crash cut off is left out."""
    from wandb.proto.wandb_internal_pb2 import Record

    for data in _records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(content: bytes) -> Iterator[bytes]:
    if not content.startswith(_MAGIC):
        return
    at, parts = _HEADER, b""
    while at + _HEADER <= len(content):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        part = content[at + _HEADER : at + _HEADER + length]
        if kind == 0 or len(part) < length:
            return
        at += _HEADER + length
        parts = parts + part
        if kind in (_FULL, _LAST):
            yield parts
            parts = b""

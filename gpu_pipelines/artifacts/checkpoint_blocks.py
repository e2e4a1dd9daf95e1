"""Hashes of the parts of a safetensors file, so that a reader of one part can verify that part alone."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

#: Bytes of a block with its own hash. A reader of one byte reads a block; a terabyte has 60,000 hashes.
BLOCK_BYTES = 16 << 20
#: A safetensors file begins with the length of its header. Source: https://huggingface.co/docs/safetensors
_LENGTH_BYTES = 8
_PIECE = 1 << 20


@dataclass(frozen=True)
class Blocks:
    """The hashes of a safetensors file's blocks. The first block is the header, which says where the tensors are.

    Attributes:
        size: bytes of the file.
        header: bytes of the first block.
        length: bytes of each of the others; the last one may be shorter.
        sha256: hex SHA-256 of each block.
    """

    size: int
    header: int
    length: int
    sha256: tuple[str, ...]

    def __post_init__(self) -> None:
        if not (_LENGTH_BYTES <= self.header <= self.size and self.length > 0):
            raise ValueError("its blocks are of no file")
        if len(self.sha256) != 1 + -(-(self.size - self.header) // self.length):
            raise ValueError("its blocks are not as many as their hashes")

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Blocks:
        """Made from the content of a marker."""
        return cls(int(content["size"]), int(content["header"]), int(content["length"]), tuple(content["sha256"]))

    def span(self, number: int) -> tuple[int, int]:
        """First byte of a block, and the byte after its last."""
        if number == 0:
            return 0, self.header
        start = self.header + (number - 1) * self.length
        return start, min(start + self.length, self.size)

    def covering(self, start: int, end: int) -> range:
        """The blocks with the bytes of tensors from `start` to before `end`; empty if there are none."""
        first = 1 + (start - self.header) // self.length
        return range(first, 1 + -(-(end - self.header) // self.length) if end > start else first)


def hashes_of(path: Path) -> tuple[str, Blocks]:
    """Hex SHA-256 of a safetensors file, and its blocks; it is read once."""
    size = path.stat().st_size
    whole, blocks = hashlib.sha256(), []
    with path.open("rb") as file:
        header = _LENGTH_BYTES + int.from_bytes(file.read(_LENGTH_BYTES), "little")
        file.seek(0, os.SEEK_SET)
        left, length = header, BLOCK_BYTES
        while file.tell() < size:
            blocks.append(_hash_of_next(file, left, whole))
            left = length
    return whole.hexdigest(), Blocks(size, header, length, tuple(blocks))


def _hash_of_next(file: BinaryIO, length: int, whole: Any) -> str:
    block = hashlib.sha256()
    while length > 0 and (piece := file.read(min(length, _PIECE))):
        block.update(piece)
        whole.update(piece)
        length -= len(piece)
    return block.hexdigest()

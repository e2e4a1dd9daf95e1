"""The content of an object that stays in its file, so that copies and uploads of gigabytes need no memory for it."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import google_crc32c
from gcp_storage_emulator.handlers import objects

_CHUNK = 1 << 20


class FileContent:
    """The bytes of files, one after the other, where gcp-storage-emulator's handlers expect them in memory.

    Args:
        paths: the files.
        size: as many bytes belong to it; None for all.
        is_given_up: whether its only file may be moved to where it is written.
    """

    def __init__(self, *paths: Path, size: int | None = None, is_given_up: bool = False) -> None:
        self._paths, self._is_given_up = paths, is_given_up
        self._size = sum(path.stat().st_size for path in paths) if size is None else size

    def __len__(self) -> int:
        return self._size

    def __add__(self, other: FileContent) -> FileContent:
        return FileContent(*self._paths, *other._paths)

    def __radd__(self, before: bytes) -> FileContent:
        """The handler that composes an object begins with an empty content."""
        return self

    def chunks(self) -> Iterator[bytes]:
        """The bytes, some at a time."""
        left = self._size
        for path in self._paths:
            with path.open("rb") as file:
                while chunk := file.read(min(_CHUNK, left)):
                    left -= len(chunk)
                    yield chunk

    @cached_property
    def digests(self) -> tuple[str, str]:
        """CRC32C and MD5, as the API has them."""
        crc32c, md5 = google_crc32c.Checksum(), hashlib.md5(usedforsecurity=False)
        for chunk in self.chunks():
            crc32c.update(chunk)
            md5.update(chunk)
        return base64.b64encode(crc32c.digest()).decode(), base64.b64encode(md5.digest()).decode()

    def write_to(self, path: Path) -> None:
        """Writes it into a file of the same disk."""
        if self._is_given_up:
            os.truncate(self._paths[0], self._size)
            self._paths[0].replace(path)
            return
        with path.open("wb") as file:
            for chunk in self.chunks():
                file.write(chunk)


_of_bytes = (objects._crc32c, objects._md5)


def _crc32c(content: Any) -> str:
    return content.digests[0] if isinstance(content, FileContent) else str(_of_bytes[0](content))


def _md5(content: Any) -> str:
    return content.digests[1] if isinstance(content, FileContent) else str(_of_bytes[1](content))


# Applies to every server of this process.
objects._crc32c, objects._md5 = _crc32c, _md5

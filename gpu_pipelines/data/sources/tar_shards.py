"""The samples of tar shards of images, in the layout of WebDataset.

Files that follow one another and have the same name up to the first dot after the last slash are one sample:
`n02/0001.jpg` and `n02/0001.cls`. Source: https://github.com/webdataset/webdataset ("The WebDataset Format").
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from gpu_pipelines.data.sources.compression import DamagedError
from gpu_pipelines.data.sources.files import LARGEST_IMAGE, SourceFile
from gpu_pipelines.data.sources.reader import Reader
from gpu_pipelines.data.sources.row_streams import Meter, Problem, Row, decompressed
from gpu_pipelines.tasks.formats import FORMATS

_LABELS = (".cls", ".json")
_END = bytes(512)


class TarShards(Reader):
    """Each sample's image and label as the two columns asked for; the label is its .cls file or a key of its .json."""

    def rows(self, file: SourceFile, meter: Meter, columns: list[str], remedy: str) -> Iterator[Row]:
        image, label = columns
        with decompressed(file, meter) as stored:
            stream = _Tail(stored)
            key = ""
            parts: dict[str, bytes | Problem] = {}
            for name, content in _members(stream):
                stem, suffix = _key_and_suffix(name)
                if parts and (stem != key or suffix in parts):
                    yield key, _sample(parts, image, label)
                    parts = {}
                key = stem
                parts[suffix] = content
            if parts:
                yield key, _sample(parts, image, label)
            stream.require_end()


class _Tail:
    """A stream that remembers the last block, which is empty in a tar file that was not cut off."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._last = b""

    def read(self, size: int) -> bytes:
        content = self._stream.read(size)
        self._last = (self._last + content)[-len(_END) :]
        return content

    def require_end(self) -> None:
        while self.read(1 << 20):
            pass
        if self._last != _END:
            raise DamagedError("it ends in the middle")


def _members(stream: _Tail) -> Iterator[tuple[str, bytes | Problem]]:
    try:
        with tarfile.open(fileobj=stream, mode="r|") as shard:  # type: ignore[call-overload]
            for member in shard:
                if member.isfile() and not member.name.rpartition("/")[2].startswith("."):
                    yield member.name, _content(shard, member)
                shard.members = []  # it would keep all of them
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise DamagedError(str(error) or type(error).__name__) from None


def _content(shard: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | Problem:
    if member.size > LARGEST_IMAGE:
        return Problem("malformed row", f"{member.name} is larger than {LARGEST_IMAGE >> 20} MiB")
    content = shard.extractfile(member)
    return content.read() if content else b""


def _key_and_suffix(name: str) -> tuple[str, str]:
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.partition(".")
    shown = f"{folder}{slash}{stem}".encode("utf-8", "backslashreplace").decode("utf-8")
    return shown, f"{dot}{suffix}".lower()


def _sample(parts: dict[str, bytes | Problem], image: str, label: str) -> dict[str, Any] | Problem:
    images = [suffix for suffix in parts if f".{suffix.rpartition('.')[2]}" in FORMATS["images"].suffixes]
    if not images:
        return Problem("malformed row", f"no image, but {', '.join(sorted(parts))[:200]}")
    encoded = parts[images[0]]
    named = next((parts[suffix] for suffix in _LABELS if suffix in parts), b"")
    if isinstance(encoded, Problem):
        return encoded
    if isinstance(named, Problem):
        return named
    try:
        value = named.decode("utf-8").strip() if ".cls" in parts or not named else _label_in(named, label)
    except (ValueError, RecursionError) as error:
        return Problem("malformed row", f"the label cannot be read: {error}")
    return {image: encoded, label: value}


def _label_in(content: bytes, label: str) -> Any:
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found.get(label)

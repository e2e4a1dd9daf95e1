"""The samples of tar shards of images, in the layout of WebDataset.

Files that follow one another and have the same name up to the first dot after the last slash are one sample:
`n02/0001.jpg` and `n02/0001.cls`. Source: https://github.com/webdataset/webdataset ("The WebDataset Format").
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO

from gpu_pipelines.data.sources.compression import DamagedError
from gpu_pipelines.data.sources.files import LARGEST_IMAGE, SourceFile
from gpu_pipelines.data.sources.reader import Reader
from gpu_pipelines.data.sources.row_streams import Meter, Problem, Row, decompressed
from gpu_pipelines.tasks.formats import FORMATS

# Samples of a shard that tell which keys the .json files have.
_SAMPLES_LOOKED_AT = 100
_END = bytes(512)


class TarShards(Reader):
    """Each sample's image as the first column asked for; the second is its .cls file, or as all others in its .json."""

    def columns(self, file: SourceFile, choices: Sequence[Sequence[str]]) -> list[str]:
        """The first columns of the first choice, as far as there are images and .cls files, and the keys of the .json.

        No more samples are looked at than are needed to find that choice, and 100 at most.
        """
        image, label, *_ = wanted = choices[0]
        seen = {image: None}
        with decompressed(file, Meter.of_nothing()) as stored:
            for _, parts in islice(_samples(_Tail(stored)), _SAMPLES_LOOKED_AT):
                described = _described(parts)
                seen.update(dict.fromkeys([] if isinstance(described, Problem) else described))
                seen.update({label: None} if ".cls" in parts else {})
                if set(wanted) <= seen.keys():
                    break
        return list(seen)

    def rows(self, file: SourceFile, meter: Meter, columns: list[str], optional: Sequence[str] = ()) -> Iterator[Row]:
        with decompressed(file, meter) as stored:
            stream = _Tail(stored)
            for key, parts in _samples(stream):
                yield key, _sample(parts, columns)
            stream.require_end()


def _samples(stream: _Tail) -> Iterator[tuple[str, dict[str, bytes | Problem]]]:
    key = ""
    parts: dict[str, bytes | Problem] = {}
    for name, content in _members(stream):
        stem, suffix = _key_and_suffix(name)
        if parts and (stem != key or suffix in parts):
            yield key, parts
            parts = {}
        key = stem
        parts[suffix] = content
    if parts:
        yield key, parts


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


def members_of_tar(stored: BinaryIO) -> Iterator[tuple[str, bytes | Problem]]:
    """The files of a tar file, hidden ones aside, each with its name, and its content or why that is not read.

    Args:
        stored: the file, decompressed.

    Raises:
        DamagedError: it is no tar file, or ends in the middle.
    """
    stream = _Tail(stored)
    yield from _members(stream)
    stream.require_end()


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


def _sample(parts: dict[str, bytes | Problem], columns: Sequence[str]) -> dict[str, Any] | Problem:
    images = [suffix for suffix in parts if f".{suffix.rpartition('.')[2]}" in FORMATS["images"].suffixes]
    if not images:
        return Problem("malformed row", f"no image, but {', '.join(sorted(parts))[:200]}")
    image, label, *more = columns
    encoded, classed = parts[images[0]], parts.get(".cls")
    described = _described(parts) if more or classed is None else {}
    if isinstance(encoded, Problem):
        return encoded
    if isinstance(classed, Problem):
        return classed
    if isinstance(described, Problem):
        return described
    try:
        named = {} if classed is None else {label: classed.decode("utf-8").strip()}
    except UnicodeDecodeError as error:
        return Problem("malformed row", f"the label cannot be read: {error}")
    return {**{name: described.get(name) for name in (label, *more)}, **named, image: encoded}


def _described(parts: dict[str, bytes | Problem]) -> dict[str, Any] | Problem:
    """What the .json of a sample says; nothing where it has none."""
    content = parts.get(".json", b"{}")
    if isinstance(content, Problem):
        return content
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        return Problem("malformed row", f"the .json cannot be read: {error}")
    return found if isinstance(found, dict) else Problem("malformed row", "the .json is not a JSON object")

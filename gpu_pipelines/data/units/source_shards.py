"""A source in shards: files that follow one another, which one machine reads, whatever the number of machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.source import SourceFiles

#: Bytes after which a unit of work ends at the earliest, and the same in shards: its last ones are smaller than others.
_LEAST_BYTES, _LEAST_SHARDS = 256 << 20, 4
#: Files of a shard at most, where nobody asked for their sizes.
_MOST_FILES = 10_000


@dataclass(frozen=True)
class SourceShard:
    """Some of the files of a source.

    Attributes:
        number: which part of all that is read it is.
        source: the files.
        is_test: whether they are of the test source.
    """

    number: int
    source: SourceFiles
    is_test: bool = False


def unit_bytes(settings: PrepareSettings) -> int:
    """How much is done before it is kept, in bytes of a source, or characters or pixels of its rows."""
    return max(_LEAST_BYTES, _LEAST_SHARDS * (settings.shard_megabytes << 20))


def source_shards_of(source: SourceFiles, most: int, test_source: SourceFiles | None = None) -> list[SourceShard]:
    """Cuts a source between files.

    Args:
        source: the files.
        most: bytes after which a shard ends; a larger file is one by itself.
        test_source: files with the test split, which come first; None where it is taken from the source.
    """
    # First, because of records that are nearly the same the first one is kept.
    sources = [(test_source, True)] if test_source else []
    cut = [
        (replace(one, names=one.names[start:stop], sizes=one.sizes[start:stop]), is_test)
        for one, is_test in (*sources, (source, False))
        for start, stop in _cuts(one, most)
    ]
    return [SourceShard(number, part, is_test) for number, (part, is_test) in enumerate(cut)]


def _cuts(source: SourceFiles, most: int) -> Iterator[tuple[int, int]]:
    start = size = 0
    for number in range(len(source)):
        size += source.sizes[number] if source.sizes else 0
        if size >= most or number + 1 - start >= _MOST_FILES:
            yield start, number + 1
            start, size = number + 1, 0
    if start < len(source):
        yield start, len(source)


def joined(source: SourceFiles, shards: Sequence[SourceShard]) -> SourceFiles:
    """The files of some shards as one source."""
    parts = [shard.source for shard in shards]
    return replace(
        source,
        names=tuple(name for part in parts for name in part.names),
        sizes=tuple(size for part in parts for size in part.sizes or (0,) * len(part)),
    )

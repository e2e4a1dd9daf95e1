"""A source in portions: files that follow one another, which one machine reads, whatever the number of machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.components.data_prep.source_files import Source

#: Bytes after which a unit of work ends at the earliest, and the same in shards: its last ones are smaller than others.
_LEAST_BYTES, _LEAST_SHARDS = 256 << 20, 4
#: Files of a portion at most, where nobody asked for their sizes.
_MOST_FILES = 10_000


@dataclass(frozen=True)
class Portion:
    """Some of the files of a source; `number` says which part of the source it is."""

    number: int
    source: Source


def unit_bytes(settings: PrepareSettings) -> int:
    """How much is done before it is kept, in bytes of a source, or characters or pixels of its rows."""
    return max(_LEAST_BYTES, _LEAST_SHARDS * (settings.shard_megabytes << 20))


def portions_of(source: Source, most: int) -> list[Portion]:
    """Cuts a source between files.

    Args:
        source: the files.
        most: bytes after which a portion ends; a larger file is one by itself.
    """
    return [
        Portion(number, replace(source, names=source.names[start:stop], sizes=source.sizes[start:stop]))
        for number, (start, stop) in enumerate(_cuts(source, most))
    ]


def _cuts(source: Source, most: int) -> Iterator[tuple[int, int]]:
    start = size = 0
    for number in range(len(source)):
        size += source.sizes[number] if source.sizes else 0
        if size >= most or number + 1 - start >= _MOST_FILES:
            yield start, number + 1
            start, size = number + 1, 0
    if start < len(source):
        yield start, len(source)


def share_of(portions: Sequence[Portion], rank: int, nodes: int) -> list[Portion]:
    """The portions that one of several machines prepares."""
    return list(portions[rank::nodes])


def joined(source: Source, portions: Sequence[Portion]) -> Source:
    """The files of some portions as one source."""
    return replace(
        source,
        names=tuple(name for portion in portions for name in portion.source.names),
        sizes=tuple(size for portion in portions for size in portion.source.sizes),
    )

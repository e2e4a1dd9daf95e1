"""What all readers of rows share: decompressed streams, lines of bounded length, and what is said of damaged files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

from gpu_pipelines.components.data_prep.source_files import Source, SourceFile
from gpu_pipelines.errors import UserError

# Bytes of a line, a field or a document; a longer one is no row of text but a file without line ends, or worse.
LARGEST_TEXT = 16 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_NAMES = {
    "csv": "CSV",
    "jsonl": "JSON lines",
    "parquet": "Parquet",
    "arrow": "Arrow IPC",
    "text": "text",
    "tar": "tar",
}


class Problem(NamedTuple):
    """Why a row is unusable: the reason, one of a few, and what more there is to say about this row."""

    reason: str
    detail: str = ""


class Meter:
    """How much of a source has been read.

    Args:
        source: what is read; files whose size is unknown count as equal.
    """

    def __init__(self, source: Source) -> None:
        self._sizes = list(source.sizes) if any(source.sizes) else [1] * len(source)
        self._total = max(1, sum(self._sizes))
        self._done = 0
        self._file = 0
        self._stream: BinaryIO | None = None
        self._share = 0.0

    def follow(self, stream: BinaryIO) -> None:
        """The position of this stream tells how much of the current file has been read."""
        self._stream = stream

    def set_share(self, share: float) -> None:
        """This share of the current file has been read, between 0 and 1."""
        self._share = share

    def finish_file(self) -> None:
        """The current file has been read; the next one begins."""
        self._done += self._sizes[self._file]
        self._file += 1
        self._stream, self._share = None, 0.0

    @property
    def share(self) -> float:
        """Share of the source that has been read, between 0 and 1."""
        if self._file == len(self._sizes):
            return 1.0
        size = self._sizes[self._file]
        here = self._share * size
        if self._stream is not None and not self._stream.closed:
            here = min(self._stream.tell(), size)
        return (self._done + here) / self._total


class DamagedError(Exception):
    """What is wrong with a file, from a reader to `as_damaged`, which knows the file's name."""


@contextmanager
def as_damaged(file: SourceFile, format_name: str) -> Iterator[None]:
    """Turns what readers raise on a file that cannot be read, or is not what it should be, into a `UserError`."""
    import pyarrow as pa

    try:
        yield
    except OSError as error:
        if error.errno is not None or isinstance(error, FileNotFoundError):
            raise UserError(f"The file {file.name} cannot be read: {error.strerror or error}.") from None
        # Arrow raises it without a number for damaged content.
        raise _damaged(file, format_name, error) from None
    except (pa.ArrowException, UnicodeDecodeError, EOFError, DamagedError) as error:
        raise _damaged(file, format_name, error) from None


def _damaged(file: SourceFile, format_name: str, error: Exception) -> UserError:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return UserError(
        f"The file {file.name} is not {_NAMES.get(format_name, format_name)} that can be read: {first.rstrip('.')}.",
        "Mend it, take it away, or say with source_format what it is.",
    )


@contextmanager
def decompressed(file: SourceFile, meter: Meter) -> Iterator[BinaryIO]:
    """Opens a file, and decompresses it if it begins like a gzip or Zstandard file, whatever its name.

    Args:
        file: the file.
        meter: follows the bytes as they are stored.
    """
    import pyarrow as pa

    with file.open() as stored:
        meter.follow(stored)
        start = stored.read(4)
        stored.seek(0)
        kind = "gzip" if start.startswith(_GZIP) else "zstd" if start == _ZSTD else None
        if kind is None:
            yield stored
            return
        with pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), kind) as content:
            yield io.BufferedReader(content, 1 << 20)


def bounded_lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """The lines of a stream with their ends, and None for each that is longer than `LARGEST_TEXT`."""
    while line := stream.readline(LARGEST_TEXT + 1):
        if len(line) <= LARGEST_TEXT or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(1 << 20)
        yield None

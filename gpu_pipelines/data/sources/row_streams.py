"""What all readers of rows share: decompressed streams, lines of bounded length, and what is said of damaged files."""

from __future__ import annotations

import codecs
import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, cast

from gpu_pipelines.data.sources import compression
from gpu_pipelines.data.sources.compression import DamagedError
from gpu_pipelines.data.sources.files import SourceFile
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.errors import UserError, first_line
from gpu_pipelines.tasks.formats import FORMATS

# Bytes of a line, a field or a document; a longer one is no row of text but a file without line ends, or worse.
LARGEST_TEXT = 16 << 20
#: Marks at the beginning of a file; that of UTF-32 begins like one of UTF-16.
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: What to do about bytes that are not UTF-8.
ANOTHER_ENCODING = "give the encoding of the file, such as encoding=latin-1 or encoding=cp1252"


class Problem(NamedTuple):
    """Why a row is unusable: the reason, one of a few, and what more there is to say about this row."""

    reason: str
    detail: str = ""


#: Where a row is, for people (`file.csv:17`), and its values by column, or what is wrong with it.
Row = tuple[str, dict[str, Any] | Problem]


class Meter:
    """How much of a source has been read.

    Args:
        source: what is read; files whose size is unknown count as equal.
    """

    def __init__(self, source: SourceFiles) -> None:
        self._sizes = list(source.sizes) if any(source.sizes) else [1] * len(source)
        self._total = max(1, sum(self._sizes))
        self._done = 0
        self._file = 0
        self._stream: BinaryIO | None = None
        self._share = 0.0

    @classmethod
    def of_nothing(cls) -> Meter:
        """A meter whose readings nobody looks at."""
        return cls(SourceFiles("", "", ("",)))

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


@contextmanager
def as_damaged(file: SourceFile, format_name: str) -> Iterator[None]:
    """Turns what readers raise on a file that cannot be read, or is not what it should be, into a `UserError`."""
    import pyarrow as pa

    try:
        yield
    except OSError as error:
        # A client of object storage says no more than the place.
        reason = os.strerror(errno.ENOENT) if isinstance(error, FileNotFoundError) else error.strerror
        if reason:
            raise UserError(f"The file {file.name} cannot be read: {reason}.") from None
        # Arrow raises it without a number for damaged content.
        raise _damaged(file, format_name, error) from None
    except UnicodeDecodeError as error:
        raise _damaged(file, format_name, DamagedError(undecodable(error))) from None
    except (pa.ArrowException, EOFError, DamagedError, *compression.ERRORS) as error:
        raise _damaged(file, format_name, error) from None


def _damaged(file: SourceFile, format_name: str, error: Exception) -> UserError:
    title = FORMATS[format_name].title if format_name in FORMATS else format_name
    return UserError(
        f"The file {file.name} is not {title} that can be read: {first_line(error).rstrip('.')}.",
        "Repair it, remove it, or name its format with source_format.",
    )


@contextmanager
def decompressed(file: SourceFile, meter: Meter) -> Iterator[BinaryIO]:
    """Opens a file, and decompresses it if it begins like a compressed one, whatever its name.

    Args:
        file: the file.
        meter: follows the bytes as they are stored.
    """
    with file.open() as stored:
        meter.follow(stored)
        with compression.decompressed(stored) as content:
            yield content


@contextmanager
def text_of(file: SourceFile, meter: Meter) -> Iterator[BinaryIO]:
    """Opens a file of text, decompressed, as UTF-8: of one in another encoding, by its dialect, what it says there.

    Args:
        file: the file.
        meter: follows the bytes as they are stored.

    Raises:
        DamagedError: the file looks like UTF-16 without a byte order mark.
    """
    with decompressed(file, meter) as content:
        encoding = file.dialect.encoding or _encoding_of(content)
        if encoding and codecs.lookup(encoding).name not in ("utf-8", "utf-8-sig"):
            yield cast(BinaryIO, io.BufferedReader(_AsUtf8(content, encoding), 1 << 20))
        else:
            yield content


def _encoding_of(content: BinaryIO) -> str:
    start = cast(io.BufferedReader, content).peek(8)[:8]
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return encoding
    for order, zeros, others in (("le", start[1::2], start[::2]), ("be", start[::2], start[1::2])):
        if len(start) == 8 and not any(zeros) and all(others):
            raise DamagedError(f"it looks like UTF-16 without a byte order mark; give encoding=utf-16-{order}")
    return ""


class _AsUtf8(io.RawIOBase):
    """A file in another encoding, as UTF-8."""

    def __init__(self, content: BinaryIO, encoding: str) -> None:
        super().__init__()
        self._text = io.TextIOWrapper(content, encoding, newline="")
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            try:
                self._rest = self._text.read(1 << 16).encode("utf-8", "surrogatepass")
            except UnicodeDecodeError as error:  # which calls most encodings of one byte "charmap"
                raise UnicodeDecodeError(self._text.encoding, *error.args[1:]) from None
        part = self._rest[: len(buffer)]
        buffer[: len(part)] = part
        self._rest = self._rest[len(part) :]
        return len(part)


def undecodable(error: UnicodeDecodeError, remedy: str = ANOTHER_ENCODING) -> str:
    """What is wrong with bytes that are not in the encoding that they were read in, and what to do."""
    byte, before = error.object[error.start], error.object[max(0, error.start - 20) : error.start]
    after = f" after {before.decode(error.encoding, 'ignore')!r}" if before else ""
    return f"the byte 0x{byte:02x}{after} is not {error.encoding.upper()}; {remedy}"


def bounded_lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """The lines of a stream with their ends, and None for each that is longer than `LARGEST_TEXT`."""
    while line := stream.readline(LARGEST_TEXT + 1):
        if len(line) <= LARGEST_TEXT or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(1 << 20)
        yield None

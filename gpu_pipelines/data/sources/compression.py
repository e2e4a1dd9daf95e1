"""Decompresses files; the format is recognised by the first bytes, not by the name."""

from __future__ import annotations

import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

# Source: RFC 1952, RFC 8878, section 3.1.1, the bzip2 and xz file formats, APPNOTE.TXT of PKWARE, section 4.3.7.
_MAGIC = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zip": re.compile(rb"PK(\x03\x04|\x05\x06)"),
}
_LONGEST_MAGIC = 10
_BUFFER = 1 << 20
#: What readers of zip and xz raise for damaged content; Arrow, which reads the others, has exceptions of its own.
ERRORS = (lzma.LZMAError, zipfile.BadZipFile, zlib.error, NotImplementedError)
#: How much larger than the archive its content may be, from `_LARGE` on. Tables and texts become 3 to 50 times larger.
_MOST_TIMES_LARGER, _LARGE = 200, 256 << 20


class DamagedError(Exception):
    """What is wrong with a file, from a reader to `as_damaged`, which knows the file's name."""


@contextmanager
def decompressed(stored: BinaryIO) -> Iterator[BinaryIO]:
    """The content of a file that may be compressed with gzip, Zstandard, bzip2 or xz, or be a zip archive of one file.

    Args:
        stored: at its beginning; can be read again from there.

    Raises:
        DamagedError: a zip archive holds several files or none, is encrypted, or looks like a zip bomb.
    """
    import pyarrow as pa

    kind = compression_of(stored)
    if kind is None:
        yield stored
    elif kind == "xz":
        with lzma.LZMAFile(stored) as content:
            yield cast(BinaryIO, io.BufferedReader(content, _BUFFER))
    elif kind == "zip":
        with zipfile.ZipFile(stored) as archive, archive.open(_only_member(archive, stored)) as member:
            yield cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, member), _BUFFER))
    else:
        with pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), kind) as content:
            yield cast(BinaryIO, io.BufferedReader(content, _BUFFER))


def compression_of(stored: BinaryIO) -> str | None:
    """gzip, zstd, bz2, xz or zip; None for a file that is not compressed."""
    start = stored.read(_LONGEST_MAGIC)
    stored.seek(0)
    return next((kind for kind, magic in _MAGIC.items() if magic.match(start)), None)


def member_name(stored: BinaryIO) -> str:
    """The name of the only file in a zip archive.

    Raises:
        DamagedError: as `decompressed`.
    """
    with zipfile.ZipFile(stored) as archive:
        name = _only_member(archive, stored).filename
    stored.seek(0)
    return name


def _only_member(archive: zipfile.ZipFile, stored: BinaryIO) -> zipfile.ZipInfo:
    # macOS adds files of its own beside those that were packed.
    own = ("__MACOSX/", ".")
    members = [info for info in archive.infolist() if not (info.is_dir() or info.filename.startswith(own))]
    if len(members) != 1:
        raise DamagedError(
            f"it is a zip archive of {len(members):,} files, and only archives of one file are read; unpack it"
        )
    (member,) = members
    if member.flag_bits & 1:
        raise DamagedError("it is an encrypted zip archive")
    require_no_bomb(stored.seek(0, io.SEEK_END), member.file_size)
    return member


def require_no_bomb(packed: int, unpacked: int) -> None:
    """Refuses what becomes so much larger that it is no archive of data.

    Args:
        packed: bytes of the archive.
        unpacked: bytes that it would become, or has become so far.

    Raises:
        DamagedError: it does.
    """
    if unpacked > max(_LARGE, _MOST_TIMES_LARGER * packed):
        raise DamagedError(f"it looks like a zip bomb: {packed:,} bytes would become {unpacked:,}; unpack it")

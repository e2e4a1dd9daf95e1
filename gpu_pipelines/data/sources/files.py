"""One file of a source, and the format that its name tells."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gpu_pipelines.artifacts.remote_files import NoSuchStorageError, is_remote, open_remote, read_remote
from gpu_pipelines.tasks.formats import FORMATS

_TAB_SUFFIXES = (".tsv", ".tab")
_SUFFIXES = {suffix: name for name, each in FORMATS.items() for suffix in each.suffixes}
_COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz", ".zip")
#: Bytes of one image, in a file or in a shard; nothing that is an image is larger.
LARGEST_IMAGE = 256 << 20


@dataclass(frozen=True)
class Dialect:
    """How the text of files is to be read.

    Attributes:
        delimiter: between the fields of CSV; empty to tell it by the suffix and the header.
        encoding: a codec of Python; empty for UTF-8, or UTF-16 and UTF-32 with a byte order mark.
    """

    delimiter: str = ""
    encoding: str = ""


@dataclass(frozen=True)
class SourceFile:
    """One file of a source.

    Attributes:
        place: its path or URI.
        name: for people, relative to the source.
        size: bytes; 0 where nobody asked.
        dialect: how its text is to be read.
    """

    place: str
    name: str
    size: int = 0
    dialect: Dialect = Dialect()

    def open(self) -> BinaryIO:
        """Opens it for reading in pieces."""
        return open_remote(self.place) if is_remote(self.place) else Path(self.place).open("rb")

    def read(self) -> bytes:
        """All of its content.

        Raises:
            OSError: there is no such file, it is not a regular one, or it is larger than `LARGEST_IMAGE`.
            UserError: the object storage does not answer.
        """
        if self.size > LARGEST_IMAGE:
            raise OSError(_TOO_LARGE)
        if is_remote(self.place):
            try:
                content = read_remote(self.place, LARGEST_IMAGE + 1)
            except NoSuchStorageError as error:
                raise OSError(error.problem) from None
        else:
            content = self._read_here()
        if len(content) > LARGEST_IMAGE:
            raise OSError(_TOO_LARGE)
        return content

    def _read_here(self) -> bytes:
        path = Path(self.place)
        # A table can name anything; a pipe or a device would block for ever or never end.
        if path.exists() and not path.is_file():
            raise OSError("not a regular file")
        with path.open("rb") as file:
            # A sparse file is large without taking any disk.
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST_IMAGE:
                raise OSError(_TOO_LARGE)
            return file.read(size)


_TOO_LARGE = f"it is larger than {LARGEST_IMAGE >> 20} MiB"


def format_of(name: str) -> str | None:
    """The format that a file's name tells, None if it tells none."""
    path = PurePosixPath(name.lower())
    if path.suffix not in _COMPRESSIONS:
        return _SUFFIXES.get(path.suffix)
    inner = _SUFFIXES.get(PurePosixPath(path.stem).suffix)
    return inner if inner and FORMATS[inner].is_packed else None


def has_no_suffix(name: str) -> bool:
    """Whether a name tells nothing, as those that distributed programs write (`part-00000`, `part-00000.gz`)."""
    return not _suffix_within(name)


def is_json(name: str) -> bool:
    """Whether a name says JSON: rows, one to a line or in a list, or anything else."""
    return _suffix_within(name) == ".json"


def _suffix_within(name: str) -> str:
    """The suffix of what a compressed file holds, or of a file that is not."""
    path = PurePosixPath(name.lower())
    return (PurePosixPath(path.stem) if path.suffix in _COMPRESSIONS else path).suffix


def is_tab_separated(name: str) -> bool:
    """Whether a name says that a table's fields are separated by tabs."""
    return _suffix_within(name) in _TAB_SUFFIXES

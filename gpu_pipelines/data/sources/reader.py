"""What reads the rows of files in one format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache

from gpu_pipelines.data.sources.files import SourceFile
from gpu_pipelines.data.sources.row_streams import Meter, Row
from gpu_pipelines.own_class import own_class
from gpu_pipelines.tasks.formats import FORMATS


class Reader(ABC):
    """Reads files one at a time; what it raises on damaged ones is told by `as_damaged`."""

    @abstractmethod
    def rows(
        self, file: SourceFile, meter: Meter, columns: list[str], remedy: str, optional: Sequence[str] = ()
    ) -> Iterator[Row]:
        """The rows of a file in order, each with its place in the file, and no more of them at once than it must.

        Args:
            file: the file.
            meter: is told how much has been read.
            columns: those that it must have; no others need be read.
            remedy: what to do where it lacks one.
            optional: columns that are read where it has them.

        Raises:
            UserError: it lacks a column.
        """

    def columns(self, file: SourceFile, choices: Sequence[Sequence[str]]) -> list[str]:
        """The columns of a file; of a format without any, what its rows are given as.

        Args:
            file: the file.
            choices: columns that are looked for.
        """
        return ["text"]

    def nested(self, file: SourceFile) -> dict[str, str]:
        """The columns whose values are known to be no plain ones, and the type of each."""
        return {}


@cache
def reader_of(format_name: str) -> Reader:
    """The reader of a format whose files have rows."""
    place = FORMATS[format_name].reader
    reader: Reader = own_class(place, Reader, f"The reader of {format_name}")()
    return reader

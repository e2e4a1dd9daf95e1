"""The port of formats: a class that reads the rows of files in one format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache

from gpu_pipelines.data.sources.files import SourceFile
from gpu_pipelines.data.sources.row_streams import Meter, Row
from gpu_pipelines.own_class import own_class
from gpu_pipelines.tasks.formats import FORMATS


class Reader(ABC):
    """Reads files one at a time; `as_damaged` reports what it raises on damaged files."""

    @abstractmethod
    def rows(self, file: SourceFile, meter: Meter, columns: list[str], optional: Sequence[str] = ()) -> Iterator[Row]:
        """The rows of a file in order, each with its place in the file; holds as few at once as possible.

        Args:
            file: the file.
            meter: takes how much has been read.
            columns: columns that it must have; others need not be read.
            optional: columns to read if it has them.

        Raises:
            UserError: it lacks a column.
        """

    def columns(self, file: SourceFile, choices: Sequence[Sequence[str]]) -> list[str]:
        """The columns of a file; for a format without columns, the name under which its rows are given.

        Args:
            file: the file.
            choices: columns to look for.
        """
        return ["text"]

    def nested(self, file: SourceFile) -> dict[str, str]:
        """The columns whose values are known to be nested, and the type of each."""
        return {}


@cache
def reader_of(format_name: str) -> Reader:
    """The reader of a format whose files have rows."""
    place = FORMATS[format_name].reader
    reader: Reader = own_class(place, Reader, f"The reader of {format_name}")()
    return reader

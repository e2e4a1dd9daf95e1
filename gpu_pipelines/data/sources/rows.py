"""The rows of a source's files, one after another, whatever their format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpu_pipelines.data.sources.files import SourceFile
from gpu_pipelines.data.sources.listing import shown_path
from gpu_pipelines.data.sources.reader import reader_of
from gpu_pipelines.data.sources.row_streams import Meter, Problem, Row, as_damaged
from gpu_pipelines.data.sources.source import SourceFiles


def rows_of(source: SourceFiles, columns: list[str], remedy: str, meter: Meter) -> Iterator[tuple[SourceFile, Row]]:
    """Reads the rows of all files in order, and no more of them at once than it must.

    Args:
        source: files of a format with rows.
        columns: those that each file must have; of Parquet and Arrow no others are read.
        remedy: what to do where a file lacks one.
        meter: is told how much has been read.

    Raises:
        UserError: a file cannot be read, is damaged, or lacks a column.
    """
    if source.service:
        yield from source.service.rows(source, columns, meter)
        return
    for file in source:
        with as_damaged(file, source.format):
            for where, values in reader_of(source.format).rows(file, meter, columns, remedy):
                yield file, (f"{file.name}:{where}", values)
        meter.finish_file()


def source_columns(source: SourceFiles, choices: Sequence[Sequence[str]]) -> list[str]:
    """The columns of the first file; of JSON lines those of its first rows, of other formats their only one.

    Args:
        source: files of a format with rows.
        choices: columns that are looked for, which tell the delimiter of CSV.
    """
    if source.service:
        return list(source.columns)
    first = next(iter(source))
    with as_damaged(first, source.format):
        return reader_of(source.format).columns(first, choices)


def slice_value(row: dict[str, Any] | Problem, column: str) -> str:
    """A row's value of the column that the evaluation slices by, as text; empty where it has none."""
    value = None if isinstance(row, Problem) or not column else row.get(column)
    return "" if value is None or value != value else shown_path(str(value)).strip()

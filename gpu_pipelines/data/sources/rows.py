"""The rows of a source's files, one after another, whatever their format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from gpu_pipelines.data.sources.files import SourceFile
from gpu_pipelines.data.sources.listing import shown_path
from gpu_pipelines.data.sources.reader import reader_of
from gpu_pipelines.data.sources.row_streams import Meter, Problem, Row, as_damaged
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.numbers import number_in_text, whole

if TYPE_CHECKING:
    from gpu_pipelines.data.settings import PrepareSettings


def rows_of(
    source: SourceFiles, columns: list[str], meter: Meter, optional: Sequence[str] = ()
) -> Iterator[tuple[SourceFile, Row]]:
    """Reads the rows of all files in order, and no more of them at once than it must.

    Args:
        source: files of a format with rows.
        columns: those that each file must have; of Parquet and Arrow no others are read.
        meter: is told how much has been read.
        optional: columns that are read of the files that have them.

    Raises:
        UserError: a file cannot be read, is damaged, or lacks a column.
    """
    if source.service:
        others = [name for name in optional if name in source.columns and name not in columns]
        yield from source.service.rows(source, [*columns, *others], meter)
        return
    for file in source:
        with as_damaged(file, source.format):
            for where, values in reader_of(source.format).rows(file, meter, columns, optional):
                yield file, (f"{file.name}:{where}", values)
        meter.finish_file()


def source_columns(source: SourceFiles, choices: Sequence[Sequence[str]]) -> list[str]:
    """The columns of the first file that has any; of JSON lines those of its first rows, of others their only one.

    Spark writes its first file even if it has no rows for it.

    Args:
        source: files of a format with rows.
        choices: columns that are looked for, which tell the delimiter of CSV.
    """
    if source.service:
        return list(source.columns)
    for file in source:
        with as_damaged(file, source.format):
            if columns := reader_of(source.format).columns(file, choices):
                return columns
    return []


def columns_read(source: SourceFiles, settings: PrepareSettings) -> tuple[str, ...]:
    """The columns that the task reads, of those of the first file.

    Raises:
        UserError: it lacks one.
    """
    return settings.columns_of(source_columns(source, settings.column_choices()))


class Beside(TypedDict):
    """What is read of a row beside what is learned; empty where there is none.

    Attributes:
        slice_value: of the column that the evaluation slices by.
        group: of the column whose equal values stay in one split.
    """

    slice_value: str
    group: str


def beside(row: dict[str, Any] | Problem, settings: PrepareSettings) -> Beside:
    """A row's values of the columns `slice_by` and `group_by`, as text.

    Args:
        row: values by column.
        settings: the names of the columns are read.
    """
    # Rows of a group that two files write in two ways must not come into two splits.
    return {"slice_value": _value(row, settings.slice_by), "group": number_in_text(_value(row, settings.group_by))}


def _value(row: dict[str, Any] | Problem, column: str) -> str:
    value = None if isinstance(row, Problem) or not column else row.get(column)
    return "" if value is None or value != value else shown_path(str(whole(value))).strip()

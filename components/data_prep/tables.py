"""The rows of a table: CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import UserError

_EXTRA = "\0extra"


def table_rows(path: Path, columns: list[str], remedy: str) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Reads a table row by row.

    Args:
        path: a .csv, .jsonl or .parquet file.
        columns: those that it must have; of Parquet no others are read.
        remedy: what to do where it lacks one.

    Yields:
        The number of the row or line, and its values by column, or what is wrong with it as text.

    Raises:
        UserError: the table cannot be read or lacks a column.
    """
    read = {".csv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}[path.suffix.lower()]
    try:
        yield from read(path, columns, remedy)
    except OSError as error:
        raise UserError(f"The table {path} cannot be read: {error.strerror or error}.") from None


def table_columns(path: Path) -> list[str]:
    """The columns of a table; of JSON lines those of any row."""
    seen: dict[str, None] = {}
    if path.suffix.lower() == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return list(pq.read_schema(path).names)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"The table {path} is not Parquet that can be read: {error}.") from None
    for _, row in table_rows(path, [], ""):
        if isinstance(row, dict):
            seen.update(dict.fromkeys(row))
    return [name for name in seen if name]


def _require_columns(path: Path, has: list[str], wanted: list[str], remedy: str) -> None:
    missing = [column for column in wanted if column not in has]
    if missing:
        raise UserError(
            f"The table {path} has no column {' and no column '.join(repr(column) for column in missing)}; "
            f"it has {', '.join(has) or 'none at all'}.",
            remedy,
        )


def _csv_rows(path: Path, columns: list[str], remedy: str) -> Iterator[tuple[str, dict[str, Any] | str]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    # Bytes that are not UTF-8 are kept apart as escapes: replaced by one mark, two classes could become one.
    with path.open(newline="", encoding="utf-8-sig", errors="backslashreplace") as file:
        # Before Python 3.11 the reader gives up at a NUL; no path has one, so such a row is rejected either way.
        reader = csv.DictReader((line.replace("\0", "\\0") for line in file), restkey=_EXTRA)
        try:
            _require_columns(path, [name for name in reader.fieldnames or [] if name], columns, remedy)
            for row in reader:
                yield f"{reader.line_num}", "more fields than the header has" if _EXTRA in row else row
        except csv.Error as error:
            raise UserError(f"The table {path} is not CSV: {error} (near line {reader.line_num}).") from None


def _jsonl_rows(path: Path, columns: list[str], remedy: str) -> Iterator[tuple[str, dict[str, Any] | str]]:
    seen: dict[str, None] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield f"{number}", f"not JSON: {error}"
                continue
            if not isinstance(row, dict):
                yield f"{number}", "not a JSON object"
                continue
            seen.update(dict.fromkeys(row))
            yield f"{number}", row
    if seen:
        _require_columns(path, list(seen), columns, remedy)


def _parquet_rows(path: Path, columns: list[str], remedy: str) -> Iterator[tuple[str, dict[str, Any] | str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _require_columns(path, file.schema_arrow.names, columns, remedy)
            number = 0
            for batch in file.iter_batches(columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{number}", row
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if getattr(error, "errno", None):  # of the file system; Arrow raises OSError without one for corrupt data
            raise
        raise UserError(f"The table {path} is not Parquet that can be read: {error}.") from None

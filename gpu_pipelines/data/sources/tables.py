"""The rows of tables: CSV, JSON lines, Parquet and Arrow IPC; and of files of documents, which have one column."""

from __future__ import annotations

import csv
import io
import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain, islice, takewhile
from typing import Any, BinaryIO

from gpu_pipelines.data.class_names import class_names, named
from gpu_pipelines.data.sources.compression import DamagedError
from gpu_pipelines.data.sources.file_kinds import DELIMITERS, delimiter_of, header_names
from gpu_pipelines.data.sources.files import SourceFile, is_tab_separated
from gpu_pipelines.data.sources.json_list import elements, is_list
from gpu_pipelines.data.sources.reader import Reader
from gpu_pipelines.data.sources.row_streams import (
    LARGEST_TEXT,
    Meter,
    Problem,
    Row,
    bounded_lines,
    text_of,
    undecodable,
)
from gpu_pipelines.errors import UserError, columns_in_words

_EXTRA = "\0extra"
# Rows of JSON lines in which a column must be seen.
_ROWS_LOOKED_AT = 1000
# Bytes of a table that are turned into Python objects at once.
_BATCH_BYTES = 8 << 20
_ARROW_FILE = b"ARROW1"
# Spreadsheets write and read such a line before the header.
_TELLS_DELIMITER = re.compile(r'(?P<quote>"?)sep=(?P<delimiter>[^\w"])(?P=quote)', re.IGNORECASE)
_UNCLOSED = "a field begins with a quote and does not end with one; in a field in quotes each quote is doubled"


def _require_columns(file: SourceFile, has: list[str], wanted: list[str]) -> None:
    missing = [column for column in wanted if column not in has]
    doubled = [column for column in wanted if has.count(column) > 1]
    if doubled:
        raise UserError(
            f"The table {file.name} has the column {doubled[0]!r} {has.count(doubled[0])} times: "
            f"{columns_in_words(has)}.",
            "Rename all but one of them.",
        )
    if missing:
        raise UserError(
            f"The table {file.name} has no column {' and no column '.join(repr(column) for column in missing)}; "
            f"it has {columns_in_words(has)}.",
            "All files of a source need the same columns.",
        )


def _there(names: Sequence[str], columns: list[str], optional: Sequence[str]) -> list[str]:
    """The columns that are read of a file: those that it must have, and the others that it has."""
    return [*columns, *(name for name in optional if name in names and name not in columns)]


class Csv(Reader):
    """CSV, and tables whose fields are separated by tabs, semicolons or bars."""

    def columns(self, file: SourceFile, choices: Sequence[Sequence[str]]) -> list[str]:
        with text_of(file, Meter.of_nothing()) as stream:
            return [name for name in _csv_reader(stream, file, choices).fieldnames or [] if name]

    def rows(self, file: SourceFile, meter: Meter, columns: list[str], optional: Sequence[str] = ()) -> Iterator[Row]:
        with text_of(file, meter) as stream:
            taken: list[str] = []
            reader = _csv_reader(stream, file, [columns], taken)
            try:
                names = [name for name in reader.fieldnames or [] if name]
            except csv.Error as error:
                raise DamagedError(str(error)) from None
            _require_columns(file, names, _there(names, columns, optional))
            while True:
                taken.clear()
                try:
                    row = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield from _lines_without_use(taken, reader.reader.line_num, str(error))
                    continue
                while len(taken) > 1 and not taken[0].strip():  # passed over before a row
                    del taken[0]
                if len(taken) > 1 and not _is_closed(taken, reader.reader.dialect.delimiter):
                    yield from _lines_without_use(taken, reader.line_num, _UNCLOSED)
                elif _EXTRA in row:
                    yield f"{reader.line_num}", Problem("malformed row", "more fields than the header has")
                elif list(row.values()) == names:
                    yield f"{reader.line_num}", Problem("malformed row", "the header once more")
                else:
                    yield f"{reader.line_num}", row


def _is_closed(lines: list[str], delimiter: str) -> bool:
    """Whether a row of several lines has a quote at the end of each field that begins with one."""
    try:
        return bool(list(csv.reader(lines, delimiter=delimiter, strict=True)))
    except csv.Error:
        return False


def _lines_without_use(lines: list[str], last: int, why: str) -> Iterator[Row]:
    """Each line that was read as a part of one row: where a quote is not closed, most often each is a row."""
    first = last - len(lines) + 1
    detail = f"{why} (lines {first} to {last})" if len(lines) > 1 else why
    for number, line in enumerate(lines, start=first):
        if line.strip():
            yield f"{number}", Problem("malformed row", detail)


def _csv_reader(
    stream: BinaryIO, file: SourceFile, choices: Sequence[Sequence[str]], taken: list[str] | None = None
) -> csv.DictReader[str]:
    """Reads rows below a header; `taken` gets the lines that are read, which are those of a row where it is emptied."""
    csv.field_size_limit(LARGEST_TEXT)
    taken = [] if taken is None else taken
    # Bytes that are not UTF-8 stay what they are, as surrogates: two classes must not become one, a path must be found.
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")

    def lines() -> Iterator[str]:
        while line := text.readline(LARGEST_TEXT + 1):
            if len(line) > LARGEST_TEXT:
                raise DamagedError(f"a line is longer than {LARGEST_TEXT >> 20} MiB")
            # Before Python 3.11 the reader gives up at a NUL; no path has one, so such a row is rejected either way.
            taken.append(line.replace("\0", "\\0"))
            yield taken[-1]

    every = lines()
    before = list(takewhile(lambda line: not line.strip(), every))
    header = taken[-1] if len(taken) > len(before) else ""
    told = _TELLS_DELIMITER.fullmatch(header.rstrip("\r\n"))
    if told:
        before.append(header)
        header = next(every, "")
    delimiter = _delimiter(header, file, choices, told["delimiter"] if told else "")
    reader = csv.DictReader(chain(before, [header], every), restkey=_EXTRA, delimiter=delimiter)
    for _ in before:
        next(reader.reader)
    return reader


def _delimiter(header: str, file: SourceFile, choices: Sequence[Sequence[str]], told: str) -> str:
    if file.dialect.delimiter or told:
        return file.dialect.delimiter or told
    if is_tab_separated(file.name):
        return "\t"
    # Where none gives the columns that are looked for, the message names the columns that there most probably are.
    most = max(DELIMITERS, key=lambda delimiter: len(header_names(header, delimiter)))
    return delimiter_of(header, DELIMITERS, choices) or most


class JsonLines(Reader):
    """One JSON object a line, or a list of them; the columns are those of the first rows."""

    def columns(self, file: SourceFile, choices: Sequence[Sequence[str]]) -> list[str]:
        rows = islice(self.rows(file, Meter.of_nothing(), []), _ROWS_LOOKED_AT + 1)
        seen = dict.fromkeys(name for _, row in rows if isinstance(row, dict) for name in row)
        return [name for name in seen if name]

    def rows(self, file: SourceFile, meter: Meter, columns: list[str], optional: Sequence[str] = ()) -> Iterator[Row]:
        with text_of(file, meter) as stream:
            waiting: list[Row] = []
            seen: dict[str, None] = {}
            missing = set(columns)
            for number, row in _json_objects(stream):
                if not missing:
                    yield f"{number}", row
                    continue
                if isinstance(row, dict):
                    seen.update(dict.fromkeys(row))
                    missing -= seen.keys()
                waiting.append((f"{number}", row))
                if missing and seen and len(waiting) >= _ROWS_LOOKED_AT:
                    break
                # Until the first object, whatever comes is rejected, and need not be held.
                if not (missing and seen):
                    yield from waiting
                    waiting = []
            if missing and seen:
                _require_columns(file, list(seen), columns)
            yield from waiting


def _json_objects(stream: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | Problem]]:
    """The objects of a file, each with the number of its line, or in a list its own."""
    if is_list(stream):
        found: Iterator[tuple[int, Any]] = enumerate(elements(stream), start=1)
    else:
        lines = enumerate(bounded_lines(stream), start=1)
        found = ((number, _json(line)) for number, line in lines if line is None or line.strip())
    for number, row in found:
        yield number, row if isinstance(row, (dict, Problem)) else Problem("malformed row", "not a JSON object")


def _json(line: bytes | None) -> Any:
    if line is None:
        return Problem("malformed row", f"longer than {LARGEST_TEXT >> 20} MiB")
    try:
        return json.loads(line)
    except UnicodeDecodeError as error:
        return Problem("not UTF-8", undecodable(error))
    except (ValueError, RecursionError) as error:
        return Problem("malformed row", f"not JSON: {error}")


class _Columnar(Reader):
    """Files that begin or end with a schema of Arrow."""

    @abstractmethod
    def schema(self, stored: BinaryIO) -> Any:
        """The schema of a file that has been opened."""

    def columns(self, file: SourceFile, choices: Sequence[Sequence[str]]) -> list[str]:
        with file.open() as stored:
            return list(self.schema(stored).names)

    def nested(self, file: SourceFile) -> dict[str, str]:
        import pyarrow as pa

        with file.open() as stored:
            schema = self.schema(stored)
        return {field.name: str(field.type) for field in schema if pa.types.is_nested(field.type)}


class Parquet(_Columnar):
    """Parquet, of which a page of each column is in memory."""

    def schema(self, stored: BinaryIO) -> Any:
        import pyarrow.parquet as pq

        return pq.read_schema(stored)

    def rows(self, file: SourceFile, meter: Meter, columns: list[str], optional: Sequence[str] = ()) -> Iterator[Row]:
        import pyarrow.parquet as pq

        # With a buffer a row group is read page by page; without one it would have to fit into memory.
        with file.open() as stored, pq.ParquetFile(stored, buffer_size=1 << 20, pre_buffer=False) as table:
            names = table.schema_arrow.names
            wanted = _there(names, columns, optional)
            _require_columns(file, names, wanted)
            groups = [table.metadata.row_group(number) for number in range(table.metadata.num_row_groups)]
            size = sum(group.total_byte_size for group in groups)
            rows = max(1, min(10_000, _BATCH_BYTES * table.metadata.num_rows // max(1, size)))
            batches = table.iter_batches(batch_size=rows, columns=wanted or None)
            yield from _numbered(batches, table.metadata.num_rows, meter, class_names(table.schema_arrow))


class Arrow(_Columnar):
    """Arrow IPC, as a file or as a stream."""

    def schema(self, stored: BinaryIO) -> Any:
        return _arrow_batches(stored)[0]

    def rows(self, file: SourceFile, meter: Meter, columns: list[str], optional: Sequence[str] = ()) -> Iterator[Row]:
        with file.open() as stored:
            schema, batches = _arrow_batches(stored)
            wanted = _there(schema.names, columns, optional)
            _require_columns(file, list(schema.names), wanted)
            meter.follow(stored)
            chosen = (batch.select(wanted) if wanted else batch for batch in batches)
            yield from _numbered((part for batch in chosen for part in parts(batch)), 0, meter, class_names(schema))


def _arrow_batches(stored: BinaryIO) -> tuple[Any, Iterator[Any]]:
    """Schema and record batches of the two forms of Arrow IPC: with a footer, or as a stream."""
    import pyarrow as pa

    start = stored.read(len(_ARROW_FILE))
    stored.seek(0)
    if start != _ARROW_FILE:
        stream = pa.ipc.open_stream(stored)
        return stream.schema, iter(stream)
    table = pa.ipc.open_file(stored)
    return table.schema, (table.get_batch(number) for number in range(table.num_record_batches))


def parts(batch: Any) -> Iterator[Any]:
    """A record batch in pieces that become Python objects at once; damaged ones raise."""
    import pyarrow as pa

    # Damaged offsets would be read past the end of the memory. Texts that are not UTF-8 are rejected one by one later.
    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    for column in batch.columns:
        (column.view(as_bytes[column.type]) if column.type in as_bytes else column).validate(full=True)
    rows = max(1, min(10_000, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _numbered(batches: Iterator[Any], total: int, meter: Meter, names: dict[str, list[str]]) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for row in python_rows(batch):
            number += 1
            yield f"{number}", named(row, names)
        if total:
            meter.set_share(number / total)


def python_rows(batch: Any) -> Iterator[dict[str, Any] | Problem]:
    """The rows of a record batch; those with texts that are not UTF-8, or times out of range, as problems.

    Raises:
        DamagedError: there are times of a time zone that nobody knows.
    """
    batch = _as_written(batch)
    try:
        yield from batch.to_pylist()
    except KeyError as error:  # zoneinfo and pytz have classes of their own below it
        raise DamagedError(f"it has times of a time zone that is not known here: {error}") from None
    except (UnicodeDecodeError, OverflowError):
        for number in range(batch.num_rows):
            try:
                yield batch.slice(number, 1).to_pylist()[0]
            except UnicodeDecodeError as error:
                yield Problem("not UTF-8", undecodable(error, "write the texts of the file as UTF-8"))
            except OverflowError as error:  # Arrow has dates after the year 9999
                yield Problem("malformed row", f"a time that Python cannot hold: {error}")


def _as_written(batch: Any) -> Any:
    """A record batch with 0.1 for a float32 of 0.1, as pandas shows it; as a float of Python it has 17 digits."""
    import pyarrow as pa

    for place, field in enumerate(batch.schema):
        if field.type == pa.float32():
            shortest = batch.column(place).cast(pa.string()).cast(pa.float64())
            batch = batch.set_column(place, field.name, shortest)
    return batch


class Documents(Reader):
    """Documents with one or more blank lines between two, each as the column `text`, named by its first line."""

    def rows(self, file: SourceFile, meter: Meter, columns: list[str], optional: Sequence[str] = ()) -> Iterator[Row]:
        with text_of(file, meter) as stream:
            document: list[bytes] = []
            first = size = 0
            too_large = False
            for number, line in enumerate(bounded_lines(stream), start=1):
                if line is not None and not line.strip(b" \t\r\n"):
                    if document or too_large:
                        yield f"{first}", _document(document, first, too_large)
                    document, size, too_large = [], 0, False
                    continue
                if not document and not too_large:
                    first = number
                size += LARGEST_TEXT + 1 if line is None else len(line)
                if size > LARGEST_TEXT:
                    document, too_large = [], True
                elif line is not None:
                    document.append(line)
            if document or too_large:
                yield f"{first}", _document(document, first, too_large)


def _document(lines: list[bytes], first: int, too_large: bool) -> dict[str, Any] | Problem:
    if too_large:
        return Problem("malformed row", f"longer than {LARGEST_TEXT >> 20} MiB")
    try:
        return {"text": b"".join(lines).decode("utf-8-sig" if first == 1 else "utf-8").strip("\r\n")}
    except UnicodeDecodeError as error:
        return Problem("not UTF-8", undecodable(error))

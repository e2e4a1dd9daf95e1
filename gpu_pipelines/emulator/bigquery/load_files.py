"""Files of load jobs as rows: Parquet, CSV, and JSON with a value on each line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.bigquery.types import read_value, stored

FORMATS = ("PARQUET", "CSV", "NEWLINE_DELIMITED_JSON")


def rows_of_file(content: bytes, load: Mapping[str, Any], schema: pa.Schema | None) -> pa.Table:
    """The rows of a file.

    Args:
        content: the file.
        load: configuration of the load job.
        schema: the schema of the rows; None for that of the file.

    Raises:
        ApiError: the file does not have this format, or has other columns.
    """
    kind = load.get("sourceFormat", "CSV")
    if kind not in FORMATS:
        raise ApiError(501, f"The emulator loads no {kind}; it loads {', '.join(FORMATS)}.")
    try:
        if kind == "PARQUET":
            return _parquet(content, load, schema)
        return _csv(content, load, schema) if kind == "CSV" else _json_lines(content, load, schema)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
        raise ApiError(400, f"Error while reading data, error message: {str(error)[:500]}") from error


def as_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns of a schema; missing ones are null.

    Raises:
        ApiError: they have other columns, or columns of other types.
    """
    if unknown := [name for name in rows.column_names if name not in schema.names]:
        raise ApiError(400, f"Provided Schema does not match: no such field: {unknown[0]}.")
    columns = [
        rows[column.name] if column.name in rows.column_names else pa.nulls(rows.num_rows, column.type)
        for column in schema
    ]
    try:
        return pa.table([column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)
    except (pa.ArrowException, ValueError) as error:
        raise ApiError(400, f"Provided Schema does not match: {error}") from error


def rows_of_values(values: Iterator[Any], schema: pa.Schema, ignores_unknown: bool = False) -> pa.Table:
    """JSON objects as rows of a schema.

    Raises:
        ValueError: one of them does not fit; the message names it.
    """
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for number, value in enumerate(values, 1):
        if not isinstance(value, dict):
            raise ValueError(f"row {number} is no object")
        if not ignores_unknown and (unknown := sorted(set(value) - set(columns))):
            raise ValueError(f"row {number}: No such field: {unknown[0]}.")
        for column in schema:
            try:
                columns[column.name].append(read_value(value.get(column.name), column))
            except (ValueError, TypeError, ArithmeticError) as error:
                raise ValueError(f"row {number}: could not convert the value of {column.name}: {error}") from error
    return pa.table(columns, schema=schema)


def _parquet(content: bytes, load: Mapping[str, Any], schema: pa.Schema | None) -> pa.Table:
    rows = stored(pyarrow.parquet.read_table(pa.BufferReader(content)))
    has_lists = any(pa.types.is_list(column.type) for column in rows.schema)
    if has_lists and not load.get("parquetOptions", {}).get("enableListInference"):
        raise ApiError(501, "The emulator loads lists of Parquet with parquetOptions.enableListInference alone.")
    return as_schema(rows, schema) if schema else rows


def _json_lines(content: bytes, load: Mapping[str, Any], schema: pa.Schema | None) -> pa.Table:
    values = (json.loads(line) for line in content.splitlines() if line.strip())
    if schema is None:
        return stored(pa.Table.from_pylist(list(values)))
    return rows_of_values(values, schema, bool(load.get("ignoreUnknownValues")))


def _csv(content: bytes, load: Mapping[str, Any], schema: pa.Schema | None) -> pa.Table:
    delimiter = load.get("fieldDelimiter") or ","
    skipped = int(load.get("skipLeadingRows") or 0)
    if schema is None:
        # The last of the skipped rows has the names; BigQuery looks for them even if none are skipped.
        options = pyarrow.csv.ReadOptions(skip_rows=max(0, skipped - 1))
        parsing = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        return stored(pyarrow.csv.read_csv(pa.BufferReader(content), options, parsing))
    null = load.get("nullMarker", "")
    text = io.StringIO(content.decode("utf-8"), newline="")
    lines = [line for line in csv.reader(text, delimiter=delimiter) if line][skipped:]
    for number, line in enumerate(lines, 1):
        if len(line) != len(schema):
            raise ValueError(f"row {number} has {len(line)} values, and the table {len(schema)} columns")
    values = (
        {
            column.name: None if text == null and (null or not pa.types.is_string(column.type)) else text
            for column, text in zip(schema, line, strict=True)
        }
        for line in lines
    )
    return rows_of_values(values, schema)

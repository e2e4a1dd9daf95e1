"""Queries and row filters with SQLite's SQL, over the columns of a table that are neither lists nor records."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pyarrow as pa

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.bigquery.types import plain, stored

_QUOTED = re.compile(r"`([^`]+)`")
_COMMENT = re.compile(r"\A(\s|--[^\n]*\n|/\*.*?\*/)*", re.DOTALL)


def statement_of(query: str) -> str:
    """The kind of a statement: SELECT, or its first word."""
    word = re.match(r"\(*\s*(\w*)", _COMMENT.sub("", query))
    found = word[1].upper() if word else ""
    return "SELECT" if found in ("SELECT", "WITH") else found


def tables_read_by(query: str) -> list[str]:
    """The table names with a dot and in backticks in a query, each once."""
    return [name for name in dict.fromkeys(_QUOTED.findall(query)) if "." in name]


def selected(query: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """The result of a query.

    Args:
        query: a SELECT.
        tables: the tables that it reads, by their names in the query.

    Raises:
        ApiError: the query is wrong.
    """
    with closing(sqlite3.connect(":memory:")) as base:
        for name, rows in tables.items():
            _load(base, name, rows)
        try:
            found = base.execute(query)
            names = [column[0] for column in found.description]
            columns = list(zip(*found, strict=True)) or [()] * len(names)
        except sqlite3.Error as error:
            raise ApiError(400, f"Syntax error: {error} at [1:1]") from error
    known = {column.name: column for rows in tables.values() for column in rows.schema}
    made = [_column(values, known.get(name)) for name, values in zip(names, columns, strict=True)]
    # A column has the same type and mark as in its table.
    fields = [
        pa.field(name, column.type, metadata=known[name].metadata if name in known else None)
        for name, column in zip(names, made, strict=True)
    ]
    return stored(pa.table(made, schema=pa.schema(fields)))


def filtered(table: str, rows: pa.Table, restriction: str) -> pa.Table:
    """The rows that pass the filter of a read session.

    Raises:
        ApiError: the filter is wrong.
    """
    if not restriction:
        return rows
    with closing(sqlite3.connect(":memory:")) as base:
        _load(base, "rows", rows)
        try:
            kept = base.execute(f"SELECT rowid FROM rows WHERE {restriction}")  # noqa: S608
            return rows.take(pa.array([number - 1 for (number,) in kept], pa.int64()))
        except sqlite3.Error as error:
            said = f"request failed: Row filter for table {table} is invalid. Filter is '{restriction}': {error}"
            raise ApiError(400, said) from error


def _column(values: Any, like: pa.Field | None) -> pa.Array:
    try:
        made = pa.array(list(values))
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values])
    if like is not None:
        try:
            return made.cast(like.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return made
    return made


def _load(base: sqlite3.Connection, name: str, rows: pa.Table) -> None:
    columns = [column.name for column in rows.schema if not pa.types.is_nested(column.type)]
    if not columns:
        raise ApiError(400, f"The table {name} has no column that a query of the emulator reads.")
    base.execute(f"CREATE TABLE `{name}` ({', '.join(f'`{column}`' for column in columns)})")
    values = zip(*(map(_bound, rows[column].to_pylist()) for column in columns), strict=True)
    base.executemany(f"INSERT INTO `{name}` VALUES ({', '.join('?' * len(columns))})", values)  # noqa: S608


def _bound(value: Any) -> Any:
    """A value in the form for SQLite."""
    return value if value is None or isinstance(value, str | bytes | int | float) else plain(value)

"""The types of BigQuery and Arrow, and values in the form of BigQuery's REST interface."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

from gpu_pipelines.emulator.api_error import ApiError

#: BigQuery's mark of a column of the type JSON.
JSON = {b"ARROW:extension:name": b"google:sqlType:json"}
_GEOGRAPHY = {b"ARROW:extension:name": b"google:sqlType:geography"}
_TIMESTAMP, _DATETIME = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
_ARROW = {
    "STRING": pa.string(),
    "INTEGER": pa.int64(),
    "FLOAT": pa.float64(),
    "BYTES": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": _TIMESTAMP,
    "DATETIME": _DATETIME,
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "NUMERIC": pa.decimal128(38, 9),
    "BIGNUMERIC": pa.decimal256(76, 38),
    "JSON": pa.string(),
    "GEOGRAPHY": pa.string(),
}
_STANDARD = {"INT64": "INTEGER", "FLOAT64": "FLOAT", "BOOL": "BOOLEAN", "STRUCT": "RECORD"}
_BIGQUERY = {kind: name for name, kind in reversed(_ARROW.items())}
_MARKED = {"JSON": JSON, "GEOGRAPHY": _GEOGRAPHY}


def field_of(column: pa.Field) -> dict[str, Any]:
    """A column as the REST interface describes it."""
    kind, mode = column.type, "NULLABLE" if column.nullable else "REQUIRED"
    if pa.types.is_list(kind):
        kind, mode = kind.value_type, "REPEATED"
    if pa.types.is_struct(kind):
        return {"name": column.name, "type": "RECORD", "mode": mode, "fields": [field_of(part) for part in kind]}
    marked = [name for name, mark in _MARKED.items() if column.metadata and mark.items() <= column.metadata.items()]
    return {"name": column.name, "type": marked[0] if marked else _BIGQUERY[kind], "mode": mode}


def column_of(field: Mapping[str, Any]) -> pa.Field:
    """A column from its description.

    Raises:
        ApiError: there is no such type.
    """
    asked = str(field.get("type", "")).upper()
    name, kind = str(field.get("name", "")), _STANDARD.get(asked, asked)
    if not name:
        raise ApiError(400, "A field of the schema has no name.")
    if kind == "RECORD":
        parts = field.get("fields") or []
        if not parts:
            raise ApiError(400, f"The field {name} is a record without fields.")
        arrow: Any = pa.struct([column_of(part) for part in parts])
    elif kind in _ARROW:
        arrow = _ARROW[kind]
    else:
        raise ApiError(400, f"Invalid value for type: {asked} is not a valid value")
    is_list = field.get("mode") == "REPEATED"
    metadata = _MARKED.get(kind)
    return pa.field(name, pa.list_(arrow) if is_list else arrow, field.get("mode") != "REQUIRED", metadata)


def schema_of(fields: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """The schema described by fields of the REST interface.

    Raises:
        ApiError: they are invalid.
    """
    return pa.schema([column_of(field) for field in fields])


def stored(rows: pa.Table) -> pa.Table:
    """Rows with BigQuery's types, each of which has a single size.

    Raises:
        ApiError: a column has a type that BigQuery lacks.
    """
    fields = [pa.field(column.name, _kept(column.type), column.nullable, column.metadata) for column in rows.schema]
    return rows.cast(pa.schema(fields))


def _kept(kind: Any) -> Any:
    types = pa.types
    if types.is_dictionary(kind):
        return _kept(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_kept(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(part.name, _kept(part.type), part.nullable) for part in kind])
    checks = (
        (types.is_boolean, pa.bool_()),
        (types.is_integer, pa.int64()),
        (types.is_floating, pa.float64()),
        (types.is_large_string, pa.string()),
        (types.is_string_view, pa.string()),
        (types.is_large_binary, pa.binary()),
        (types.is_fixed_size_binary, pa.binary()),
        (types.is_date, pa.date32()),
        (types.is_time, pa.time64("us")),
        (types.is_null, pa.string()),
    )
    if types.is_timestamp(kind):
        return _TIMESTAMP if kind.tz else _DATETIME
    if types.is_decimal(kind):
        return _ARROW["NUMERIC"] if kind.scale <= 9 and kind.precision - kind.scale <= 29 else _ARROW["BIGNUMERIC"]
    found = next((kept for check, kept in checks if check(kind)), kind)
    if found not in _BIGQUERY:
        raise ApiError(400, f"Unsupported type: {kind}.")
    return found


def cells_of(rows: pa.Table, in_microseconds: bool) -> list[dict[str, Any]]:
    """Rows in the form of tabledata.list; timestamps in integer microseconds or in seconds."""
    columns = [[_cell(value, in_microseconds) for value in column.to_pylist()] for column in rows.columns]
    return [{"f": [{"v": value} for value in row]} for row in zip(*columns, strict=True)]


def _cell(value: Any, in_microseconds: bool) -> Any:
    if isinstance(value, list):
        return [{"v": _cell(each, in_microseconds)} for each in value]
    if isinstance(value, dict):
        return {"f": [{"v": _cell(each, in_microseconds)} for each in value.values()]}
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime) and value.tzinfo:
        seconds = value.timestamp()
        return str(round(seconds * 1_000_000)) if in_microseconds else repr(seconds)
    return plain(value) if value is None or isinstance(value, str | bytes) else str(plain(value))


def plain(value: Any) -> Any:
    """A value of a row as JSON."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z") if value.tzinfo else value.isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


def read_value(value: Any, column: pa.Field) -> Any:
    """A JSON value as a value of a column.

    Raises:
        ValueError: it is invalid.
    """
    kind = column.type
    if pa.types.is_list(kind):
        return [read_value(each, kind.value_field) for each in value or []]
    if value is None:
        return None
    if pa.types.is_struct(kind):
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r} is no record")
        return {part.name: read_value(value.get(part.name), part) for part in kind}
    if column.metadata and JSON.items() <= column.metadata.items():
        return value if isinstance(value, str) else json.dumps(value)
    return _read_scalar(value, kind)


def _read_scalar(value: Any, kind: Any) -> Any:
    types = pa.types
    if types.is_string(kind):
        return value if isinstance(value, str) else json.dumps(value)
    if types.is_boolean(kind):
        if isinstance(value, str) and value.lower() not in ("true", "false"):
            raise ValueError(f"{value!r} is no BOOLEAN")
        return value.lower() == "true" if isinstance(value, str) else bool(value)
    if types.is_integer(kind):
        return int(value)
    if types.is_floating(kind):
        return float(value)
    if types.is_binary(kind):
        return base64.b64decode(value, validate=True)
    if types.is_decimal(kind):
        return Decimal(str(value))
    if types.is_timestamp(kind):
        found = datetime.fromisoformat(str(value).replace(" UTC", "+00:00").replace("Z", "+00:00"))
        return found if kind.tz is None or found.tzinfo else found.replace(tzinfo=timezone.utc)
    return date.fromisoformat(str(value)) if types.is_date(kind) else time.fromisoformat(str(value))

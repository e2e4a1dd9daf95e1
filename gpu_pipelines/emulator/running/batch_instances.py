"""The instances of a batch prediction job: read from its files, and converted to the form for the model.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.batchPredictionJobs#InstanceConfig.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Instance:
    """An instance.

    Attributes:
        sent: the value for the model.
        told: the instance in the output: `instance`, or `key`, and its value.
        error: why the model cannot get it; empty if it can.
    """

    sent: Any
    told: Mapping[str, Any]
    error: str = ""


def rows_of_json_lines(files: Iterable[Path]) -> Iterator[Any]:
    """The values of files with one value on each line; for an invalid line, the exception."""
    for file in files:
        with file.open("rb") as lines:
            for line in lines:
                if not line.strip():
                    continue
                try:
                    yield json.loads(line)
                except ValueError as error:
                    yield ValueError(f"{line.decode('utf-8', 'replace').strip()[:200]} is no JSON: {error}")


def rows_of_csv(files: Iterable[Path]) -> Iterator[Any]:
    """The rows of files as objects by the names in their first lines; for a row with another number of values, the
    exception. Texts that read as numbers become numbers.
    """
    for file in files:
        with file.open(encoding="utf-8", errors="replace", newline="") as text:
            reader = csv.reader(text)
            names = next(reader, [])
            for values in reader:
                if len(values) == len(names):
                    yield dict(zip(names, map(_number, values), strict=True))
                elif values:
                    yield ValueError(f"The row {values} has {len(values)} values, and the header {len(names)}.")


def instances_of(rows: Iterable[Any], config: Any, is_table: bool, is_told_whole: bool = True) -> Iterator[Instance]:
    """Rows as instances.

    Args:
        rows: JSON values; an exception stands for a row that cannot be read.
        config: `InstanceConfig` of the job.
        is_table: whether rows come from a table or CSV, and so are arrays unless the job says otherwise.
        is_told_whole: whether the output has the fields of an instance by name; otherwise an array stays an array.
    """
    kind = config.instance_type or ("array" if is_table else "")
    for row in rows:
        told: dict[str, Any] = {"instance": None if isinstance(row, ValueError) else row}
        if kind == "array" and not is_told_whole and isinstance(row, dict):
            told = {"instance": list(row.values())}
        try:
            if isinstance(row, ValueError):
                raise row
            if config.key_field:
                told = {"key": _key_of(row, config.key_field)}
            sent = _converted(row, config, kind)
        except ValueError as error:
            yield Instance(None, told, str(error))
            continue
        yield Instance(sent, told)


def _key_of(row: Any, field: str) -> Any:
    if not isinstance(row, dict) or field not in row:
        raise ValueError(f"The instance has no field {field}, which is the key.")
    return row[field]


def _converted(row: Any, config: Any, kind: str) -> Any:
    """A row in the form for the model."""
    if not isinstance(row, dict):
        if kind == "object" or config.included_fields or config.excluded_fields:
            raise ValueError("The instance is no object.")
        return [row] if kind == "array" and not isinstance(row, list) else row
    if missing := [name for name in config.included_fields if name not in row]:
        raise ValueError(f"The instance has no field {missing[0]}.")
    left_out = {*config.excluded_fields, config.key_field}
    kept = {name: row[name] for name in config.included_fields or row if name not in left_out}
    return list(kept.values()) if kind == "array" else kept


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

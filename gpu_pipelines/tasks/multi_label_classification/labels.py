"""The classes that a row of a table says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gpu_pipelines.data.cells import written
from gpu_pipelines.data.class_names import class_in
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.row_streams import Problem
from gpu_pipelines.numbers import whole

#: What stands between names in a cell of text, the first one that it holds.
_SEPARATORS = ("|", ";", ",")
#: A cell of text that is a list as JSON or as Python writes it, or a tuple or a set.
_LIST = re.compile(r"""\[.*\]|[({]\s*['"\d].*[)}]|\(\)|set\(\)""", re.DOTALL)
#: Between the texts of an array as NumPy writes it; Python would make one text of them.
_NO_COMMA = re.compile(r"""(?<=['"])\s+(?=['"])""")
#: What a column of a class holds. pandas makes floats of whole numbers where one is missing, and writes CSV so.
MARKS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}


def classes_of_row(row: Mapping[str, Any], settings: PrepareSettings) -> str | Problem:
    """The classes of a row as JSON in one order, so that equal ones are equal texts; or why it says none.

    Of one column the names in it: a list, a list as JSON, Python or NumPy writes it, or text with `|`, `;` or commas
    between them. Of several columns those that hold 1 or true.

    Args:
        row: of a table.
        settings: `label_column` and `missing_labels` are read.
    """
    columns = settings.label_columns
    names = _listed(row.get(columns[0]), settings) if len(columns) == 1 else _marked(row, columns)
    return names if isinstance(names, Problem) else json.dumps(sorted(set(names)), ensure_ascii=False)


def classes_in(label: str) -> list[str]:
    """The names in the result of `classes_of_row`."""
    names: list[str] = json.loads(label)
    return names


def _listed(value: Any, settings: PrepareSettings) -> list[str] | Problem:
    items = _items(value)
    if items is None:
        return Problem("no label", "a row of no class has [] in the label column")
    if isinstance(items, Problem):
        return items
    names = []
    for item in items:
        name = class_in(item, settings)
        if isinstance(name, Problem):
            return name
        names.append(name)
    return names


def _items(value: Any) -> list[Any] | Problem | None:
    """What a cell holds, one by one; None where it is empty."""
    if not isinstance(value, str):
        return value if isinstance(value, list) else None if value is None or value != value else [value]
    text = value.strip()
    if _LIST.fullmatch(text):
        return _items_written(text)
    separator = next((each for each in _SEPARATORS if each in text), _SEPARATORS[0])
    return [name for name in map(str.strip, text.split(separator)) if name] or None


def _items_written(text: str) -> list[Any] | Problem:
    found = written(text, lambda text: _NO_COMMA.sub(", ", text))
    if isinstance(found, (list, tuple, set)):
        return list(found)
    return Problem("malformed row", f"the label {text[:80]!r} is no list as JSON or Python writes it")


def _marked(row: Mapping[str, Any], columns: tuple[str, ...]) -> list[str] | Problem:
    names = []
    for column in columns:
        value = row.get(column)
        truth = MARKS.get(str(whole(value)).strip().lower())
        if truth is None:
            return Problem("no label", f"the column {column!r} holds {str(value)[:80]!r}, neither 0 nor 1")
        if truth:
            names.append(column)
    return names

"""The names of classes: what a row's label says, and what files that `datasets` wrote have in their schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.row_streams import ANOTHER_ENCODING, Problem
from gpu_pipelines.errors import UserError
from gpu_pipelines.numbers import whole

#: What is learned of a row of a table, as text, or why it says nothing.
LabelOf = Callable[[dict[str, Any], PrepareSettings], str | Problem]


class ClassNumbers(dict[str, int]):
    """The number of each class, by its name.

    Args:
        names: the classes that were found when the source was read the first time, in order.
        first: number of the first one.
    """

    def __init__(self, names: Iterable[str], first: int = 0) -> None:
        super().__init__((name, number) for number, name in enumerate(names, start=first))

    def __missing__(self, name: str) -> int:
        raise UserError(
            f"The source has changed while it was read: {name[:200]!r} was not there the first time.",
            "Prepare it again when nothing writes to it.",
        )


def class_in(value: Any, settings: PrepareSettings) -> str | Problem:
    """The name of the class that a row's label says, or why it says none.

    Args:
        value: of the column with the label.
        settings: `label_column` and `missing_labels` are read.
    """
    if isinstance(value, (list, dict)):
        return Problem("malformed row", f"the column {settings.label_column!r} holds a nested value ({_kind(value)})")
    if isinstance(value, bytes):
        return Problem("no label", f"the column {settings.label_column!r} holds bytes; give one of texts or numbers")
    value = whole(value)
    name = "" if value is None or value != value else str(value).strip()
    if not name:
        return Problem("no label")
    if isinstance(value, str) and name in settings.names_of_no_class:
        return Problem("no label", f"{name!r} stands for a missing value; if it is a class, see missing_labels")
    return name


def class_of_row(row: Mapping[str, Any], settings: PrepareSettings) -> str | Problem:
    """The name of the class that a row of a table says in `label_column`, or why it says none."""
    return class_in(row.get(settings.label_column), settings)


def _kind(value: Any) -> str:
    return type(value).__name__


def encoding_problem(texts: list[str]) -> Problem | None:
    """Why texts cannot be written as UTF-8: bytes in another encoding, or surrogates that stand for none."""
    whole = "".join(texts)
    try:
        whole.encode("utf-8")
    except UnicodeEncodeError as error:
        place = whole[error.start]
        if "\udc80" <= place <= "\udcff":  # what the reader of CSV makes of such a byte
            before = whole[max(0, error.start - 20) : error.start]
            after = f" after {before!r}" if before else ""
            return Problem("not UTF-8", f"the byte 0x{ord(place) - 0xDC00:02x}{after}; {ANOTHER_ENCODING}")
        return Problem("not Unicode", f"the lone surrogate {place!a} at character {error.start + 1}")
    return None


def class_names(schema: Any) -> dict[str, list[str]]:
    """The names by number for each column of the type `ClassLabel`, or of lists of them.

    Args:
        schema: of a Parquet or Arrow file, with its metadata.
    """
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        items = {column: _of_items(feature) for column, feature in features.items()}
        return {
            column: [str(name) for name in feature["names"]]
            for column, feature in items.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _of_items(feature: Any) -> Any:
    """What the items of a list are, as the versions of `datasets` have it; of what is no list, the feature itself."""
    if isinstance(feature, list):
        return feature[0] if feature else None
    return feature.get("feature", feature) if isinstance(feature, dict) else feature


def named(row: dict[str, Any] | Problem, names: dict[str, list[str]]) -> dict[str, Any] | Problem:
    """A row with names in the place of numbers; a number without a name, such as −1, is no class."""
    if not names or isinstance(row, Problem):
        return row
    for column, of in names.items():
        value = row.get(column)
        if isinstance(value, int):
            row[column] = _name(value, of)
        elif isinstance(value, list):
            row[column] = [_name(item, of) if isinstance(item, int) else item for item in value]
    return row


def _name(number: int, names: list[str]) -> str | None:
    return names[number] if 0 <= number < len(names) else None

"""The names of classes in files that `datasets` wrote: the rows have numbers, the names are in the schema."""

from __future__ import annotations

import json
from typing import Any

from gpu_pipelines.components.data_prep.row_streams import Problem


def class_names(schema: Any) -> dict[str, list[str]]:
    """The names by number for each column of the type `ClassLabel`.

    Args:
        schema: of a Parquet or Arrow file, with its metadata.
    """
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {
            column: [str(name) for name in feature["names"]]
            for column, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def named(row: dict[str, Any] | Problem, names: dict[str, list[str]]) -> dict[str, Any] | Problem:
    """A row with names in the place of numbers; a number without a name, such as −1, is no class."""
    if not names or isinstance(row, Problem):
        return row
    for column, of in names.items():
        number = row.get(column)
        if isinstance(number, int):
            row[column] = of[number] if 0 <= number < len(of) else None
    return row

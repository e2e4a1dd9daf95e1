"""The columns of a table that a task reads."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError


def columns_looked_for(settings: PrepareSettings) -> list[tuple[str, ...]]:
    """The choices of columns that a task reads, the first one first; a table needs all columns of one choice."""
    if settings.task == "causal_lm":
        return [(settings.text_column,), ("prompt", "completion"), ("messages",)]
    named = (getattr(settings, f"{_kind(settings)}_column"), settings.label_column, settings.slice_by)
    return [tuple(dict.fromkeys(column for column in named if column))]


def _kind(settings: PrepareSettings) -> str:
    return "image" if settings.task == "image_classification" else "text"


def columns_of_task(settings: PrepareSettings, has: Sequence[str]) -> tuple[str, ...]:
    """The columns that are read, of those that a table has.

    Args:
        settings: `source` is named in messages; `task` and the column names are read.
        has: the columns of the table.

    Raises:
        UserError: one is missing.
    """
    choices = columns_looked_for(settings)
    for wanted in choices:
        if set(wanted) <= set(has):
            return wanted
    if settings.task == "causal_lm":
        if not has:
            raise UserError(f"The source {settings.source} holds no texts.")
        raise UserError(
            f"The source {settings.source} has no column {settings.text_column!r}, no columns 'prompt' and "
            f"'completion', and no column 'messages'; it has {', '.join(has)}.",
            "Name the column of texts with -p text_column=….",
        )
    missing = [column for column in choices[0] if column not in has]
    raise UserError(
        f"The source {settings.source} has no column {' and no column '.join(map(repr, missing))}; "
        f"it has {', '.join(has) or 'none at all'}.",
        f"Name the columns with -p {_kind(settings)}_column=… and -p label_column=….",
    )

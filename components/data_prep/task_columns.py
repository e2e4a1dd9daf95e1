"""The columns of a table that a task reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.components.data_prep.settings import PrepareSettings


def columns_of_task(settings: PrepareSettings, has: list[str]) -> tuple[str, ...]:
    """The columns that are read, of those that a table has.

    Args:
        settings: `source` is named in messages; `task` and the column names are read.
        has: the columns of the table.

    Raises:
        UserError: one is missing.
    """
    if settings.task == "causal_lm":
        return columns_of_texts(settings, has)
    kind = "image" if settings.task == "image_classification" else "text"
    named = (getattr(settings, f"{kind}_column"), settings.label_column, settings.slice_by)
    wanted = tuple(dict.fromkeys(column for column in named if column))
    missing = [column for column in wanted if column not in has]
    if missing:
        raise UserError(
            f"The source {settings.source} has no column {' and no column '.join(map(repr, missing))}; "
            f"it has {', '.join(has) or 'none at all'}.",
            f"Name the columns with -p {kind}_column=… and -p label_column=….",
        )
    return wanted


def columns_of_texts(settings: PrepareSettings, has: list[str]) -> tuple[str, ...]:
    """The columns with the text of a language model: the one that was named, or those of prompts or chats.

    Raises:
        UserError: there is none of them.
    """
    for wanted in ((settings.text_column,), ("prompt", "completion"), ("messages",)):
        if set(wanted) <= set(has):
            return wanted
    if not has:
        raise UserError(f"The source {settings.source} holds no texts.")
    raise UserError(
        f"The source {settings.source} has no column {settings.text_column!r}, no columns 'prompt' and 'completion', "
        f"and no column 'messages'; it has {', '.join(has)}.",
        "Name the column of texts with -p text_column=….",
    )

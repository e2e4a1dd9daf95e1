"""A row of preferences as text, for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_TOLD = {"rejected": "\nin place of: "}


def parts_of(row: dict[str, Any], decode: Callable[[np.ndarray], str]) -> list[dict[str, Any]]:
    """The prompt and the completions of a row, in parts that are learned and parts that are not.

    Args:
        row: values by feature, with the length of each.
        decode: makes text of tokens.
    """
    names = [name for name in ("prompt", "chosen", "rejected", "completion") if name in row]
    parts = []
    for name in names:
        if told := _TOLD.get(name):
            parts.append({"text": told, "learned": False})
        parts.append({"text": decode(row[name][: row[f"{name}_length"]]), "learned": name != "prompt"})
    if "label" in row:
        parts.append({"text": f"\njudged {'good' if row['label'] else 'bad'}", "learned": False})
    return parts

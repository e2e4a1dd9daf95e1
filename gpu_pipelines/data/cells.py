"""What a cell of a table holds as text, where the format of the table has no lists."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any


def written(text: str, for_python: Callable[[str], str] = str) -> Any:
    """What a cell holds as JSON, or as Python writes it, and so pandas into CSV; the text if it is neither.

    Args:
        text: of the cell.
        for_python: makes of a text that is no JSON one that Python reads.
    """
    for read in (json.loads, lambda text: ast.literal_eval(for_python(text))):
        try:
            return read(text.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return text

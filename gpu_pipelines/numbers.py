"""Numbers as users write them, and as KFP can pass them on."""

from __future__ import annotations

import re

LARGEST_WHOLE_NUMBER = 2**53  # KFP passes numbers as doubles
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def number_of(text: str) -> float:
    """The number that a text is; unlike `float` it takes neither `1_0` nor `nan` nor other scripts' digits.

    Raises:
        ValueError: it is none.
    """
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a number")
    return float(text)

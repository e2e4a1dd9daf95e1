"""The English of the pages, by rules that a program can hold: `website/words.csv` has them, and what to write."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from pages import pages, prose, text_of

WORDS = Path(__file__).with_name("words.csv")


def rules() -> list[tuple[re.Pattern[str], str]]:
    """What is not to be written, and what to write instead."""
    with WORDS.open(encoding="utf-8", newline="") as file:
        return [(re.compile(row["pattern"], re.MULTILINE), row["instead"]) for row in csv.DictReader(file)]


def findings(page: str, text: str) -> Iterator[str]:
    """What a page has that is not to be written, one line each: where, what, what instead.

    Args:
        page: its path in the repository.
        text: what it says, in Markdown; its code is left out.
    """
    bare = prose(text)
    for pattern, instead in rules():
        for match in pattern.finditer(bare):
            line = bare.count("\n", 0, match.end()) + 1
            yield f"{page}:{line}: {' '.join(match[0].split())!r}; {instead}"


def problems() -> Iterator[str]:
    """The findings of all pages."""
    for page in pages():
        yield from findings(page, text_of(page))

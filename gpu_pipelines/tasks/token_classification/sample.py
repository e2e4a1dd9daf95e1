"""The sample of texts with entities."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpu_pipelines.tasks.sample_rows import write_rows
from gpu_pipelines.tasks.token_classification.words import words_in

#: How Python's manual marks code, the terms that it explains, and proposals.
_MARKUP = re.compile(r'"(?P<CODE>[^"\n]{1,80})"|\*\*(?P<PEP>PEP \d+)\*\*|(?<!\*)\*(?P<TERM>[^*\n]{2,60})\*(?!\*)')
#: A paragraph of prose begins like this; indented ones are mostly code.
_PROSE = re.compile(r"[A-Z]")
_SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z])")
FEWEST_WORDS = 4


def write_manual(folder: Path) -> Path:
    """Writes sentences of Python's own reference manual, which ships with Python, into `manual.jsonl`.

    What the manual marks as code, as a term that it explains, or as a proposal (PEP) is an entity; the marks are gone.
    """
    from pydoc_data.topics import topics

    return write_rows(folder / "manual.jsonl", (row for _, text in sorted(topics.items()) for row in _rows(text)))


def _rows(text: str) -> Iterator[dict[str, list[str]]]:
    for paragraph in text.split("\n\n"):
        prose = " ".join(paragraph.split())
        if not _PROSE.match(paragraph) or "::=" in prose or "****" in prose:
            continue
        for sentence in _SENTENCE.split(prose):
            words, tags = _tagged(sentence)
            if len(words) >= FEWEST_WORDS:
                yield {"text": words, "label": tags}


def _tagged(sentence: str) -> tuple[list[str], list[str]]:
    words: list[str] = []
    tags: list[str] = []
    place = 0
    for match in [*_MARKUP.finditer(sentence), None]:
        before = words_in(sentence[place : match.start() if match else len(sentence)])
        words += [word for word, _ in before]
        tags += ["O"] * len(before)
        if match is None:
            break
        kind = str(match.lastgroup)
        inside = [word for word, _ in words_in(match[kind])]
        words += inside
        tags += [f"{'I' if number else 'B'}-{kind}" for number in range(len(inside))]
        place = match.end()
    return words, tags

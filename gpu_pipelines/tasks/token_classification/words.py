"""From texts to words, from words to tokens, and from the tags of words to entities."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpu_pipelines.tasks.marks import MARKS
from gpu_pipelines.tasks.text_tokenizer import load_tokenizer

#: What a word is where a text is not given in words: letters and digits with their marks, or a single other character.
_WORD = re.compile(rf"\w[\w{MARKS}]*|[^\w\s]")
#: The tag of a word that is in no entity.
OUTSIDE = "O"


class Entity(NamedTuple):
    """An entity: its type, and the numbers of its first and last word."""

    kind: str
    first: int
    last: int


def words_in(text: str) -> list[tuple[str, int]]:
    """The words of a text, each with the place of its first character."""
    return [(match[0], match.start()) for match in _WORD.finditer(text)]


def is_word(text: str) -> bool:
    """Whether something can stand among words with blanks between them."""
    return len(text.split()) == 1 and text == text.strip()


def placed(words: Sequence[str]) -> list[tuple[str, int]]:
    """Words with blanks between them, each with the place of its first character."""
    ends = accumulate(len(word) + 1 for word in words)
    return list(zip(words, chain([0], ends), strict=False))


def entities_in(tags: Sequence[str]) -> list[Entity]:
    """The entities that the tags of words say.

    As in seqeval and CoNLL's conlleval, `I-TYPE` begins an entity too where there is none of that type to go on with.
    """
    found: list[Entity] = []
    kind, first = "", 0
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, name = tag.partition("-")
        goes_on = prefix == "I" and bool(kind) and name == kind
        if kind and not goes_on:
            found.append(Entity(kind, first, place - 1))
            kind = ""
        if prefix != OUTSIDE and not goes_on:
            kind, first = name, place
    return found


class WordEncoder:
    """Encodes texts that are given in words, with blanks between them; see `BatchEncoder`.

    Args:
        tokenizer: its directory.
        longest: tokens at which a text is cut.
    """

    def __init__(self, tokenizer: Path, longest: int) -> None:
        self._tokenizer = load_tokenizer(tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(longest)
        self._tokenizer.encode_special_tokens = True

    def encode(self, texts: Sequence[Sequence[str]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The tokens of each text, int32, and for each token the number of the word that it begins, else -1."""
        return [
            self._with_words(encoding, words)
            for encoding, words in zip(self._tokenizer.encode_batch([" ".join(t) for t in texts]), texts, strict=True)
        ]

    def _with_words(self, encoding: Any, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        ends = np.cumsum([len(word) + 1 for word in words])
        begins, last = np.full(len(encoding.ids), -1, dtype=np.int32), -1
        for place, ((start, stop), special) in enumerate(
            zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        ):
            if special or stop <= start:
                continue
            # A token may have the blank before its word, but is of the word that its last character is in.
            word = int(np.searchsorted(ends, stop - 1, side="right"))
            if last < word < len(words):
                begins[place] = last = word
        return np.array(encoding.ids, dtype=np.int32), begins

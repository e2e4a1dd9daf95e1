"""The first pass over texts: which classes there are, and the texts that a tokenizer is trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_pipelines.data import preparation

# Characters of text that a tokenizer is trained on at most.
MOST_TRAINED_ON = 64 << 20
_TEXTS = "texts.jsonl"


class TrainingTexts:
    """Different texts up to a size, chosen by their content alone, so that their order does not matter.

    Args:
        most: characters that are kept at most.
        parts: one of so many texts is kept; more are left out where these are too many.

    Attributes:
        parts: one of so many texts is kept by now.
    """

    def __init__(self, most: int = MOST_TRAINED_ON, parts: int = 1) -> None:
        self._most = most
        self._texts: dict[int, list[str]] = {}
        self._size = 0
        self.parts = parts

    def add(self, number: int, texts: list[str]) -> None:
        """Adds the texts of a record with this `content_number`, if it is one of those chosen."""
        if not self._is_chosen(number) or number in self._texts:
            return
        self._texts[number] = texts
        self._size += sum(map(len, texts))
        while self._size > self._most and len(self._texts) > 1:
            self.keep_one_of(2 * self.parts)

    def keep_one_of(self, parts: int) -> None:
        """Keeps one of so many texts, if more are kept by now; `parts` are a power of two."""
        self.parts = max(parts, self.parts)
        self._texts = {number: texts for number, texts in self._texts.items() if self._is_chosen(number)}
        self._size = sum(len(text) for texts in self._texts.values() for text in texts)

    def leave_out(self, others: TrainingTexts) -> None:
        """Leaves out the texts that are among others, which may then hold fewer of their own."""
        for each in (self, others):
            each.keep_one_of(max(self.parts, others.parts))
        self._texts = {number: texts for number, texts in self._texts.items() if number not in others._texts}
        self._size = sum(len(text) for texts in self._texts.values() for text in texts)

    def _is_chosen(self, number: int) -> bool:
        # The high bits decide on the split; the low ones are independent of them.
        return number % self.parts == 0

    @property
    def is_all(self) -> bool:
        """Whether no text was left out."""
        return self.parts == 1

    def items(self) -> Iterator[tuple[int, list[str]]]:
        """The texts by `content_number`, in ascending order."""
        return iter(sorted(self._texts.items()))

    def __iter__(self) -> Iterator[str]:
        return (text for _, texts in self.items() for text in texts)


@dataclass
class Survey(preparation.Survey):
    """What the first pass over texts finds: whether there are chats, and texts to train a tokenizer on, too."""

    has_chats: bool = False
    training: TrainingTexts = field(default_factory=TrainingTexts)

    def save(self, folder: Path) -> dict[str, Any]:
        with (folder / _TEXTS).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(item) + "\n" for item in self.training.items())
        return {**super().save(folder), "has_chats": self.has_chats, "parts": self.training.parts}

    def add(self, folder: Path, said: Mapping[str, Any]) -> None:
        super().add(folder, said)
        self.has_chats = self.has_chats or said["has_chats"]
        self.training.keep_one_of(said["parts"])
        with (folder / _TEXTS).open(encoding="utf-8") as file:
            for line in file:
                self.training.add(*json.loads(line))

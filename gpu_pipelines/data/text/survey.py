"""The first pass over texts: which classes there are, and the texts that a tokenizer is trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.splits.content_split import content_number, split_at
from gpu_pipelines.data.text.sources import TextRecord
from gpu_pipelines.data.units.progress import Progress
from gpu_pipelines.tasks.text_encoding import texts_of

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
            self.parts *= 2
            self._texts = {number: texts for number, texts in self._texts.items() if self._is_chosen(number)}
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
class Survey:
    """What the first pass finds: classes, whether there are chats, texts to train on, the first row of each problem."""

    rows: int = 0
    labels: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)
    has_chats: bool = False
    training: TrainingTexts = field(default_factory=TrainingTexts)

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes the texts to a file in `folder`, and returns the rest."""
        with (folder / _TEXTS).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(item) + "\n" for item in self.training.items())
        said = {"rows": self.rows, "labels": sorted(self.labels), "problems": self.problems}
        return {**said, "has_chats": self.has_chats, "parts": self.training.parts}

    @classmethod
    def read(cls, folder: Path, said: Mapping[str, Any]) -> Survey:
        """What `save` wrote."""
        training = TrainingTexts(parts=said["parts"])
        found = cls(said["rows"], set(said["labels"]), said["problems"], said["has_chats"], training)
        with (folder / _TEXTS).open(encoding="utf-8") as file:
            for line in file:
                found.training.add(*json.loads(line))
        return found

    @classmethod
    def joined(cls, surveys: Sequence[Survey]) -> Survey:
        """What all of some surveys have found."""
        parts = max(found.training.parts for found in surveys)
        whole = cls(
            sum(found.rows for found in surveys),
            set().union(*(found.labels for found in surveys)),
            {},
            any(found.has_chats for found in surveys),
            TrainingTexts(parts=parts),
        )
        for found in surveys:
            whole.problems.update({**found.problems, **whole.problems})
            for number, texts in found.training.items():
                whole.training.add(number, texts)
        return whole


def survey(
    records: Iterable[TextRecord],
    settings: PrepareSettings,
    progress: Progress,
    names_in: Callable[[TextRecord], Iterable[str]],
    check: Callable[[], None] = lambda: None,
) -> Survey:
    """Looks through records once.

    Args:
        records: of a source, or of its beginning where that is enough.
        settings: `tokenizer` and the split are read.
        progress: is told of each record.
        names_in: the names of a record that are to be known, such as that of its class.
        check: is called again and again; ends it by raising.

    Raises:
        UserError: the source cannot be read.
    """
    found = Survey()
    trains = settings.tokenizer == "train"
    for record in records:
        check()
        progress.advance()
        found.rows += 1
        if record.problem:
            found.problems.setdefault(record.problem.reason, f"{record.source}: {record.problem.detail}")
            continue
        found.labels.update(names_in(record))
        found.has_chats = found.has_chats or isinstance(record.text, list)
        if trains:
            number = content_number(record.content, settings.split_seed)
            if split_at(number, settings.val_fraction, settings.test_fraction) == "train":
                found.training.add(number, texts_of(record.text))
    return found

"""Scores entities as seqeval does: one is right if its type, its first and its last word are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.evaluation.metrics.counts import FOUND, RIGHT, TRUE, averages, figures_of_each, moved_of_kinds, share
from gpu_pipelines.evaluation.scores import SummedScores
from gpu_pipelines.evaluation.scoring import WORST_KEPT, Columns, Scoring
from gpu_pipelines.evaluation.statistics.bootstrap import Resampled
from gpu_pipelines.evaluation.statistics.moved import ShiftCheck
from gpu_pipelines.tasks.instances import decoded
from gpu_pipelines.tasks.token_classification.words import Entity, WordEncoder, entities_in, words_in


@dataclass(frozen=True)
class EntityScores(SummedScores):
    """Entities of texts.

    Attributes:
        sums: float64 (rows, 3 × types + 2): of each type the entities that are right, those that were found, and those
            that there are; then the words whose tag is right, and all words.
        kinds: the types.
        predicted: the tags of the words of each row.
        true: the true ones.
    """

    kinds: tuple[str, ...]
    predicted: Sequence[Sequence[str]]
    true: Sequence[Sequence[str]]

    @classmethod
    def of(
        cls, predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]], kinds: Sequence[str]
    ) -> EntityScores:
        """Scores the tags of the words of some texts."""
        index = {kind: number for number, kind in enumerate(kinds)}
        sums = np.zeros((len(true), 3 * len(kinds) + 2))
        for row, of_row, wanted in zip(sums, predicted, true, strict=True):
            found, there = set(entities_in(of_row)), set(entities_in(wanted))
            for which, entities in ((RIGHT, found & there), (FOUND, found), (TRUE, there)):
                for entity in entities:
                    row[3 * index[entity.kind] + which] += 1
            row[-2:] = sum(map(str.__eq__, of_row, wanted)), len(wanted)
        return cls(sums, tuple(kinds), predicted, true)

    def subset(self, rows: np.ndarray) -> EntityScores:
        said = ([of[row] for row in rows] for of in (self.predicted, self.true))
        return EntityScores(self.sums[rows], self.kinds, *said)

    def of_totals(self, totals: np.ndarray) -> Resampled:
        """Precision, recall and F1 over all entities, and the mean F1 of the types that there are or were found."""
        found = averages(totals[:, :-2].reshape(len(totals), len(self.kinds), 3))
        return {**found, "token_accuracy": share(totals[:, -2], totals[:, -1])}

    def details(self) -> dict[str, Any]:
        """Figures of each type."""
        by_kind = self.sums[:, :-2].sum(axis=0).reshape(len(self.kinds), 3)
        return {"parts": figures_of_each(by_kind, self.kinds, "entities")}

    def moved(self, recorded: Evaluation, labels: Sequence[str], kept: Sequence[str]) -> list[ShiftCheck]:
        return moved_of_kinds(self.kinds, self._of_kinds, recorded, "types of entities")

    def _of_kinds(self, names: Sequence[str]) -> EntityScores:
        counts = self.sums[:, :-2].reshape(self.rows, len(self.kinds), 3)[:, [self.kinds.index(name) for name in names]]
        sums = np.hstack([counts.reshape(self.rows, -1), self.sums[:, -2:]])
        return EntityScores(sums, tuple(names), self.predicted, self.true)


class EntityScoring(Scoring):
    """Takes (rows, tokens): for each token that begins a word the number of its tag, from 1; else 0."""

    @property
    def _tags(self) -> list[str]:
        return list(self.dataset.manifest.preprocessing["tags"])

    @property
    def _longest(self) -> int:
        return int(self.dataset.manifest.preprocessing["sequence_length"])

    def width(self, labels: list[str]) -> None:
        return None

    def shape(self, rows: int, labels: list[str]) -> str:
        return f"numbers of tags of shape ({rows}, tokens)"

    def aligned(self, predicted: np.ndarray, labels: list[str], recipe: Any) -> np.ndarray:
        """As wide as the longest row; tags of the model that the dataset does not have become no entity."""
        wanted, has = self._tags, getattr(recipe, "tags", self._tags)
        number = [0, *(wanted.index(tag) + 1 if tag in wanted else 1 for tag in has)]
        # What is not a number is no tag.
        found = np.array(number, dtype=np.float32)[np.nan_to_num(predicted).astype(int)]
        return np.pad(found, ((0, 0), (0, self._longest - found.shape[1])))

    def scores(self, predicted: np.ndarray, split: str) -> EntityScores:
        kinds = [tag[2:] for tag in self._tags if tag.startswith("B-")]
        return EntityScores.of(*self._said(predicted, split), kinds)

    def _said(self, predicted: np.ndarray, split: str) -> tuple[list[list[str]], list[list[str]]]:
        """The predicted and the true tags of the words of each row; of a model that has diverged none is right."""
        tags, rows = ["", *self._tags], self.dataset.split(split)
        found: list[list[str]] = []
        true: list[list[str]] = []
        for columns in rows.columns(0, len(rows), ["tags"]):
            for row in columns["tags"]:
                words = np.flatnonzero(row)
                given = predicted[len(found)][words].astype(int)
                found.append([tags[number] for number in given])
                true.append([tags[number] for number in row[words]])
        return found, true

    def worst(self, scores: EntityScores) -> list[dict[str, Any]]:
        by_kind = scores.sums[:, :-2].reshape(scores.rows, len(scores.kinds), 3).sum(axis=1)
        wrong = by_kind[:, FOUND] + by_kind[:, TRUE] - 2 * by_kind[:, RIGHT]
        rows = [int(row) for row in np.argsort(-wrong, kind="stable")[:WORST_KEPT] if wrong[row] > 0]
        test = self.dataset.split("test")
        taken = test.take(np.array(rows, dtype=int))
        shown = []
        for place, (row, source) in enumerate(zip(rows, test.sources(rows), strict=True)):
            words = self._words(taken["tokens"][place, : taken["tokens_length"][place]], taken["tags"][place])
            told = {"missed or wrong": int(wrong[row]), "true": _named(scores.true[row], words)}
            told |= {"found": _named(scores.predicted[row], words), "text": " ".join(words)}
            shown.append({"row": row, "source": source, **told})
        return shown

    def _words(self, tokens: np.ndarray, tags: np.ndarray) -> list[str]:
        starts = np.flatnonzero(tags)
        parts = np.split(tokens, starts)[1:]
        return [text.strip() for text in decoded(list(parts), self._tokenizer)]

    @property
    def _tokenizer(self) -> Any:
        return self.dataset.tokenizer

    def examples(self, rows: Columns) -> tuple[list[dict[str, Any]], list[Columns]] | None:
        lengths = rows["tokens_length"]
        texts = decoded([row[:length] for row, length in zip(rows["tokens"], lengths, strict=True)], self._tokenizer)
        words = [[word for word, _ in words_in(text)] for text in texts]
        encoded = WordEncoder(self._tokenizer, self._longest).encode(words)
        same = [
            number
            for number, (tokens, begins) in enumerate(encoded)
            if np.array_equal(tokens, rows["tokens"][number, : lengths[number]])
            and np.array_equal(begins >= 0, rows["tags"][number, : lengths[number]] > 0)
        ]
        return [{"text": texts[n]} for n in same], [{name: values[[n]] for name, values in rows.items()} for n in same]

    def prediction(self, predicted: np.ndarray, labels: list[str], instance: dict[str, Any]) -> dict[str, Any]:
        text = instance["text"]
        tags = [labels[int(number) - 1] for number in predicted if number > 0]
        return {"entities": as_answer(text, words_in(text), entities_in(tags))}


def as_answer(text: str, words: Sequence[tuple[str, int]], entities: Sequence[Entity]) -> list[dict[str, Any]]:
    """Entities of a text, in the words of Hugging Face's pipelines: type, text, and the places of its characters.

    Args:
        text: the text.
        words: of it, each with the place of its first character.
        entities: by the numbers of these words.
    """
    found = []
    for kind, first, last in entities:
        start, stop = words[first][1], words[last][1] + len(words[last][0])
        found.append({"entity_group": kind, "word": text[start:stop], "start": start, "end": stop})
    return found


def _named(tags: Sequence[str], words: Sequence[str]) -> str:
    found = (f"{kind}: {' '.join(words[first : last + 1])}" for kind, first, last in entities_in(tags))
    return "; ".join(found) or "none"

"""Prepares texts with a tag for each word, in rows of any length."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.dataset import Feature
from gpu_pipelines.data.class_names import ClassNumbers, encoding_problem
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.rows import beside, rows_of, source_columns
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.text.prepare import TextPreparation
from gpu_pipelines.data.text.sources import TextRecord
from gpu_pipelines.data.text.survey import Survey
from gpu_pipelines.data.text.work import RowForm, TextRows, UsableText, one_to_a_row
from gpu_pipelines.data.usable import require_rows
from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.tasks.token_classification.words import OUTSIDE, WordEncoder, is_word

_TAG = re.compile(r"O|[BI]-\S+")
#: IOBES, BILOU and BMES say the end of an entity and one of a single word too, which IOB2 tells by the next tag.
_IOB2 = {"S": "B", "U": "B", "E": "I", "L": "I", "M": "I"}


class TaggedWork:
    """Texts in words, one to a row, as long as each is.

    Args:
        tokenizer: directory of the tokenizer.
        form: of the rows; `length` is that of the longest.
    """

    def __init__(self, tokenizer: Path, form: RowForm) -> None:
        self._encoder = WordEncoder(tokenizer, form.length)
        self._longest = form.length

    def __call__(self, batch: Sequence[UsableText]) -> TextRows:
        encoded = self._encoder.encode([str(record.text).split(" ") for record in batch])

        def columns_of(chosen: Sequence[int]) -> dict[str, Any]:
            tags = [[batch[n].target[word] if word >= 0 else 0 for word in encoded[n][1]] for n in chosen]
            return {"tokens": [encoded[number][0] for number in chosen], "tags": tags}

        return one_to_a_row(batch, [len(tokens) == self._longest for tokens, _ in encoded], columns_of)


class TaggedTexts(TextPreparation):
    """Texts with a tag for each word.

    The feature `tags` has for each token the number of the tag of the word that it begins, from 1; 0 for the others.
    """

    reads_all = True
    work = TaggedWork

    def records(self, source: SourceFiles, meter: Meter) -> Iterator[TextRecord]:
        columns = list(source.columns)
        for _, (where, row) in rows_of(source, columns, meter):
            if isinstance(row, Problem):
                yield TextRecord(where, "", problem=row)
                continue
            words, tags = _listed(row.get(columns[0])), [_iob2(tag) for tag in _listed(row.get(columns[1]))]
            if problem := _problem(words, tags):
                yield TextRecord(where, "", problem=problem)
            else:
                yield TextRecord(where, " ".join(words), " ".join(tags), **beside(row, self.settings))

    def columns_of(self, source: SourceFiles, settings: PrepareSettings) -> tuple[str, ...]:
        choices = settings.column_choices()
        has = source_columns(source, choices)
        return settings.columns_of(has) if has else choices[0]

    def features(self, length: int) -> dict[str, Feature]:
        return {"tokens": Feature("int32", (-1,)), "tags": Feature("int32", (-1,))}

    def names_in(self, record: TextRecord) -> Iterable[str]:
        return record.label.split(" ")

    def plan(self, found: Survey, of_test: Survey | None, folder: Path) -> dict[str, Any]:
        kinds = {tag[2:] for tag in found.labels} - {""}
        if not kinds:
            require_rows(found.problems, self.settings)
            raise UserError(
                f"The source {self.settings.source} has no entity: all tags are {OUTSIDE}.", "Check the label column."
            )
        if of_test and (unknown := {tag[2:] for tag in of_test.labels} - kinds - {""}):
            raise UserError(
                f"The test_source {self.settings.test_source} has entities that {self.settings.source} does not have: "
                f"{some_of(map(repr, unknown), most=10)}.",
                "Both need the same types.",
            )
        tags = [OUTSIDE, *(f"{prefix}-{kind}" for kind in sorted(kinds) for prefix in "BI")]
        return {**super().plan(found, of_test, folder), "tags": tags}

    def preprocessing(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        return {"sequence_length": plan["length"], "tags": plan["tags"]}

    def target_of(self, plan: Mapping[str, Any]) -> Callable[[TextRecord], list[int]]:
        index = ClassNumbers(plan["tags"], first=1)
        return lambda record: [index[tag] for tag in record.label.split(" ")]


def _listed(value: Any) -> list[str]:
    """The words or tags of a cell: a list, or a text with blanks between them."""
    if isinstance(value, str):
        return value.split()
    return ["" if item is None else str(item) for item in value] if isinstance(value, list) else []


def _iob2(tag: str) -> str:
    return f"{_IOB2[tag[0]]}{tag[1:]}" if tag[1:2] == "-" and tag[0] in _IOB2 else tag


def _problem(words: list[str], tags: list[str]) -> Problem | None:
    if not words:
        return Problem("no text", "there are no words; give a list, or a text with blanks between the words")
    if not all(map(is_word, words)):
        return Problem("malformed words", "a word is empty or has a blank in it")
    if len(words) != len(tags):
        return Problem("malformed tags", f"{len(words):,} words and {len(tags):,} tags")
    if wrong := next((tag for tag in tags if not _TAG.fullmatch(tag)), None):
        return Problem("malformed tags", f"{wrong[:60]!r} is not one of O, B-TYPE and I-TYPE, or of IOBES or BILOU")
    return encoding_problem(words)

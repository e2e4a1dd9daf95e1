"""What is done with a batch of texts, in a process of its own: they become rows of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from gpu_pipelines.artifacts.dataset import SPLITS
from gpu_pipelines.data.sources.row_streams import Problem
from gpu_pipelines.data.text.packing import PackedRows, Piece
from gpu_pipelines.data.text.sources import Text
from gpu_pipelines.tasks.batch_encoding import BatchEncoder, columns_of_rows


class UsableText(NamedTuple):
    """A record that goes into the dataset: its split, origin, text, what is learned of it, and slice."""

    split: str
    source: str
    text: Text
    target: Any = 0
    slice_value: str = ""


@dataclass
class TextRows:
    """What a batch became.

    Attributes:
        read: records of the batch.
        rows: whole rows by split.
        rest: by split, what did not fill a row and is packed with that of other batches.
        rejected: where a record came from that cannot be used after all, and why.
        cut: texts that fill a row, and were cut if they are longer.
    """

    read: int = 0
    rows: dict[str, PackedRows] = field(default_factory=dict)
    rest: dict[str, list[Piece]] = field(default_factory=dict)
    rejected: list[tuple[str, Problem]] = field(default_factory=list)
    cut: int = 0


@dataclass(frozen=True)
class RowForm:
    """How texts become rows.

    Attributes:
        length: tokens of a row.
        padding: token that fills it.
        several: of a language model, whether a row may hold several documents.
    """

    length: int
    padding: int
    several: bool


class TextWork:
    """What the work on texts is made of.

    Args:
        tokenizer: directory of the tokenizer.
        form: of the rows.
    """

    def __init__(self, tokenizer: Path, form: RowForm) -> None:
        self._encoder = BatchEncoder(tokenizer)
        self._form = form


class SingleTexts(TextWork):
    """Texts, or pairs, one to a row, each with what is to be learned of it; by itself, with the index of its class."""

    def __call__(self, batch: Sequence[UsableText]) -> TextRows:
        length = self._form.length
        encoded = self._encoder.rows([cast(Any, record.text) for record in batch], length)

        def columns_of(chosen: Sequence[int]) -> dict[str, Any]:
            columns = columns_of_rows([encoded[number] for number in chosen], length, self._form.padding)
            return {**columns, **self.targets([batch[number].target for number in chosen])}

        return one_to_a_row(batch, [len(row.tokens) == length for row in encoded], columns_of)

    @staticmethod
    def targets(targets: Sequence[Any]) -> dict[str, np.ndarray]:
        """The features of some rows besides their tokens, from what the preparation gave as `target`."""
        return {"label": np.array(targets, dtype=np.int32)}


def one_to_a_row(
    batch: Sequence[UsableText], is_full: Sequence[bool], columns_of: Callable[[Sequence[int]], dict[str, Any]]
) -> TextRows:
    """Rows of one record each.

    Args:
        batch: the records.
        is_full: of each whether it fills a row.
        columns_of: gives the features of some records, by their numbers in the batch.
    """
    made = TextRows(read=len(batch), cut=sum(is_full))
    for split in SPLITS:
        chosen = [number for number, record in enumerate(batch) if record.split == split]
        if chosen:
            slices = [batch[number].slice_value for number in chosen]
            sources = [batch[number].source for number in chosen]
            made.rows[split] = PackedRows(sources, columns_of(chosen), [1] * len(chosen), slices)
    return made

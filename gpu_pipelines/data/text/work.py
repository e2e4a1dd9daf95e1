"""What is done with a batch of texts, in a process of its own: they become rows of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpu_pipelines.artifacts.dataset import SPLITS
from gpu_pipelines.data.sources.row_streams import Problem
from gpu_pipelines.data.text.packing import PackedRow, PackedRows, Packer, Piece, packed_rows
from gpu_pipelines.data.text.sources import Text
from gpu_pipelines.tasks.batch_encoding import BatchEncoder
from gpu_pipelines.tasks.text_encoding import CannotEncodeError, Encoded


class UsableText(NamedTuple):
    """A record that goes into the dataset: its split, where it came from, its text, index of its class, and slice."""

    split: str
    source: str
    text: Text
    label: int = 0
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


class ClassifiedWork:
    """Texts with a class, one to a row.

    Args:
        tokenizer: directory of the tokenizer.
        form: of the rows.
    """

    def __init__(self, tokenizer: Path, form: RowForm) -> None:
        self._encoder = BatchEncoder(tokenizer)
        self._form = form

    def __call__(self, batch: Sequence[UsableText]) -> TextRows:
        length = self._form.length
        encoded = self._encoder.classified([str(record.text) for record in batch], length)
        made = TextRows(read=len(batch), cut=sum(len(tokens) == length for tokens in encoded))
        for split in SPLITS:
            chosen = [number for number, record in enumerate(batch) if record.split == split]
            if not chosen:
                continue
            tokens = np.full((len(chosen), length), self._form.padding, dtype=np.int32)
            for row, number in enumerate(chosen):
                tokens[row, : len(encoded[number])] = encoded[number]
            columns = {
                "input_ids": tokens,
                "length": np.array([len(encoded[number]) for number in chosen], dtype=np.int32),
                "label": np.array([batch[number].label for number in chosen], dtype=np.int32),
            }
            slices = [batch[number].slice_value for number in chosen]
            made.rows[split] = PackedRows([batch[n].source for n in chosen], columns, [1] * len(chosen), slices)
        return made


class PackedWork:
    """Texts of a language model, packed.

    Args:
        tokenizer: directory of the tokenizer.
        form: of the rows.
    """

    def __init__(self, tokenizer: Path, form: RowForm) -> None:
        self._encoder = BatchEncoder(tokenizer)
        self._form = form

    def __call__(self, batch: Sequence[UsableText]) -> TextRows:
        form = self._form
        made = TextRows(read=len(batch))
        packers = {split: Packer(form.length, form.several) for split in SPLITS}
        full: dict[str, list[PackedRow]] = {split: [] for split in SPLITS}
        for record, encoded in zip(batch, self._encoded(batch), strict=True):
            if isinstance(encoded, Problem):
                made.rejected.append((record.source, encoded))
            elif not isinstance(record.text, str) and len(encoded.tokens) > form.length:
                # Cut, an answer would lose its prompt or its end, and the model would learn to ramble.
                problem = Problem("longer than sequence_length", f"{len(encoded.tokens):,} tokens")
                made.rejected.append((record.source, problem))
            elif not encoded.targets[1:].any():
                problem = Problem("nothing to predict", f"{len(encoded.tokens)} tokens")
                made.rejected.append((record.source, problem))
            else:
                full[record.split] += packers[record.split].add(encoded.tokens, encoded.targets, record.source)
        for split, packer in packers.items():
            if full[split]:
                made.rows[split] = packed_rows(full[split], form.length, form.padding)
            made.rest[split] = [piece for row in packer.rest() for piece in row.pieces]
        return made

    def _encoded(self, batch: Sequence[UsableText]) -> list[Encoded | Problem]:
        documents = iter(self._encoder.documents([r.text for r in batch if isinstance(r.text, str)]))
        pairs = iter(self._encoder.completions([r.text for r in batch if isinstance(r.text, tuple)]))
        found: list[Encoded | Problem] = []
        for record in batch:
            if isinstance(record.text, list):
                try:
                    found.append(self._encoder.chat(record.text))
                except CannotEncodeError as error:
                    found.append(Problem("chat cannot be rendered", str(error)))
            else:
                found.append(next(documents if isinstance(record.text, str) else pairs))
        return found

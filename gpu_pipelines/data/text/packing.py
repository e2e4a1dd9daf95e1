"""Documents of tokens into rows of one length, several to a row, none cut that fits into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gpu_pipelines.artifacts.dataset import Feature

# Rows that are still open; the first one with room takes a document. More of them waste less and mix farther.
OPEN_ROWS = 64


class Piece(NamedTuple):
    """A document, or a part of one that is longer than a row.

    Attributes:
        tokens: int32.
        targets: for each token whether it is to be predicted, uint8.
        source: where the document came from, for people.
        begins: whether the document begins with it.
    """

    tokens: np.ndarray
    targets: np.ndarray
    source: str
    begins: bool = True


@dataclass(eq=False)
class PackedRow:
    """One row: its pieces, and the tokens that they fill."""

    used: int = 0
    pieces: list[Piece] = field(default_factory=list)

    @property
    def source(self) -> str:
        """Where its pieces came from, for people."""
        more = len(self.pieces) - 1
        return self.pieces[0].source + (f" and {more} more" if more else "")

    @property
    def records(self) -> int:
        """Documents that begin in this row."""
        return sum(piece.begins for piece in self.pieces)


class PackedRows(NamedTuple):
    """Rows as a dataset has them: where each came from, its features, how many documents begin in it, its slice."""

    sources: list[str]
    columns: dict[str, np.ndarray]
    records: list[int]
    slice_values: Sequence[str] = ()


def packed_rows(rows: Sequence[PackedRow], length: int, padding: int) -> PackedRows:
    """Rows of `length` tokens as `input_ids`, `loss_mask` and `position_ids`.

    Positions begin at 0 with each document and with the padding; the first token of a piece is not predicted.
    """
    shape = (len(rows), length)
    tokens = np.full(shape, padding, np.int32)
    mask = np.zeros(shape, np.uint8)
    positions = np.empty(shape, np.int32)
    ascending = np.arange(length, dtype=np.int32)
    for number, row in enumerate(rows):
        start = 0
        for piece in row.pieces:
            end = start + len(piece.tokens)
            tokens[number, start:end] = piece.tokens
            mask[number, start + 1 : end] = piece.targets[1:]
            positions[number, start:end] = ascending[: end - start]
            start = end
        positions[number, start:] = ascending[: length - start]
    columns: dict[str, np.ndarray] = {"input_ids": tokens, "loss_mask": mask, "position_ids": positions}
    return PackedRows([row.source for row in rows], columns, [row.records for row in rows])


class Packer:
    """Packs the documents of one split, first fit.

    Args:
        length: tokens of a row, at least 2.
        several: whether a row may hold several documents.
    """

    def __init__(self, length: int, several: bool = True) -> None:
        self._length = length
        self._most_open = OPEN_ROWS if several else 0
        self._open: list[PackedRow] = []

    def add(self, tokens: np.ndarray, targets: np.ndarray, source: str) -> list[PackedRow]:
        """Adds a document and returns the rows that are full.

        A document longer than a row is cut. Each piece begins with the last token of the one before, so that every
        token but the first is predicted once.
        """
        done = []
        for start in _starts(tokens, self._length):
            piece = slice(start, start + self._length)
            done += self.place(Piece(tokens[piece], targets[piece], source, begins=start == 0))
        return done

    def rest(self) -> list[PackedRow]:
        """The rows that are still open, when there are no more documents."""
        rows, self._open = self._open, []
        return rows

    def place(self, piece: Piece) -> list[PackedRow]:
        """Adds what fits into a row and returns the row that is full, if there is one."""
        room = self._length - len(piece.tokens)
        row = next((row for row in self._open if row.used <= room), None)
        if row is None:
            row = PackedRow()
            self._open.append(row)
        row.pieces.append(piece)
        row.used += len(piece.tokens)
        # A document of fewer than two tokens has nothing to predict, so such room is of no use.
        if row.used <= self._length - 2:
            if len(self._open) <= self._most_open:
                return []
            row = max(self._open, key=lambda open_row: open_row.used)
        self._open.remove(row)
        return [row]


def _starts(tokens: np.ndarray, length: int) -> range:
    return range(0, max(len(tokens) - 1, 1), length - 1)


def last_piece(tokens: np.ndarray, length: int) -> np.ndarray:
    """The last one of the pieces that a document is cut into.

    Args:
        tokens: of the document.
        length: tokens of a row.
    """
    return tokens[_starts(tokens, length)[-1] :]


def packed_features(length: int) -> dict[str, Feature]:
    """The features of a row of `length` tokens."""
    return {
        "input_ids": Feature("int32", (length,)),
        "loss_mask": Feature("uint8", (length,)),
        "position_ids": Feature("int32", (length,)),
    }

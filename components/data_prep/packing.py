"""Documents of tokens into rows of one length, several to a row, none cut that fits into one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gpu_pipelines.artifacts.dataset import Feature

# Rows that are still open; the first one with room takes a document. More of them waste less and mix farther.
OPEN_ROWS = 64


@dataclass
class PackedRow:
    """One row.

    Attributes:
        length: tokens of a row.
        used: tokens filled so far.
        pieces: tokens and targets of each document, or piece of one.
        sources: where the pieces came from, for people.
        records: documents that begin in this row.
    """

    length: int
    used: int = 0
    pieces: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    records: int = 0

    def add(self, tokens: np.ndarray, targets: np.ndarray, source: str, begins: bool) -> None:
        self.pieces.append((tokens, targets))
        self.sources.append(source)
        self.used += len(tokens)
        self.records += begins

    @property
    def source(self) -> str:
        more = len(self.sources) - 1
        return self.sources[0] + (f" and {more} more" if more else "")

    def features(self, padding: int) -> dict[str, np.ndarray]:
        """`input_ids`, `loss_mask` and `position_ids`, which begin at 0 with each document and with the padding."""
        rest = self.length - self.used
        pieces = [*self.pieces, (np.full(rest, padding, np.int32), np.zeros(rest, np.uint8))]
        mask = [np.concatenate([targets[:1] * 0, targets[1:]]) for _, targets in pieces]
        return {
            "input_ids": np.concatenate([tokens for tokens, _ in pieces]).astype(np.int32),
            "loss_mask": np.concatenate(mask).astype(np.uint8),
            "position_ids": np.concatenate([np.arange(len(tokens)) for tokens, _ in pieces]).astype(np.int32),
        }


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
        for start in range(0, max(len(tokens) - 1, 1), self._length - 1):
            piece = slice(start, start + self._length)
            done += self._place(tokens[piece], targets[piece], source, begins=start == 0)
        return done

    def rest(self) -> list[PackedRow]:
        """The rows that are still open, when there are no more documents."""
        rows, self._open = self._open, []
        return rows

    def _place(self, tokens: np.ndarray, targets: np.ndarray, source: str, begins: bool) -> list[PackedRow]:
        row = next((row for row in self._open if row.used + len(tokens) <= self._length), None)
        if row is None:
            row = PackedRow(self._length)
            self._open.append(row)
        row.add(tokens, targets, source, begins)
        # A document of fewer than two tokens has nothing to predict, so such room is of no use.
        full = [row] if row.used > self._length - 2 else []
        if not full and len(self._open) > self._most_open:
            full = [max(self._open, key=lambda open_row: open_row.used)]
        self._open = [open_row for open_row in self._open if not any(open_row is done for done in full)]
        return full


def packed_features(length: int) -> dict[str, Feature]:
    """The features of a row of `length` tokens."""
    return {
        "input_ids": Feature("int32", (length,)),
        "loss_mask": Feature("uint8", (length,)),
        "position_ids": Feature("int32", (length,)),
    }

"""Scores tokens; prompts with completions each for itself, whatever row they stand in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Dataset, Split
from gpu_pipelines.evaluation.metrics.loss import LikelihoodScores, LossScoring
from gpu_pipelines.evaluation.scoring import Columns
from gpu_pipelines.tasks.instances import decoded, prompts_to_send
from gpu_pipelines.tasks.text_tokenizer import load_tokenizer

_FEATURES = {"input_ids", "loss_mask", "position_ids"}
# Rows in which prompts are looked for.
_LOOKED_AT = 256


class TokenScoring(LossScoring):
    """Losses of the scored tokens of a row, or of a document.

    Args:
        dataset: what models are scored on.

    Attributes:
        apart: whether rows are taken apart into documents.
    """

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset)
        self.apart = holds_completions(dataset)
        self._bytes: dict[str, np.ndarray] = {}

    def prepared(self, columns: Columns) -> Columns:
        return taken_apart(columns) if self.apart else columns

    def groups(self, columns: Columns, rows: int) -> list[np.ndarray]:
        # As many tokens at once as without taking apart: documents of a batch can be of very different lengths.
        return _by_length(columns) if self.apart else super().groups(columns, rows)

    def scores(self, predicted: np.ndarray, split: str) -> LikelihoodScores:
        return LikelihoodScores.of(predicted, self._text_bytes(split), self.apart)

    def worst(self, scores: LikelihoodScores) -> list[dict[str, Any]]:
        if self.dataset.tokenizer is None:
            return []
        return self._worst_texts(scores, self._documents if self.apart else None)

    def slice_values(self, column: str) -> list[str]:
        values = super().slice_values(column)
        return [values[row] for row in self._documents[0]] if self.apart else values

    def examples(self, rows: Columns) -> tuple[list[dict[str, Any]], list[Columns]] | None:
        return _prompts(rows, self.dataset.tokenizer) if self.dataset.tokenizer else None

    def prediction(self, predicted: np.ndarray, labels: list[str], instance: dict[str, Any]) -> dict[str, Any]:
        return {"loss": float(predicted[0] / predicted[1]), "tokens": int(predicted[1])}

    def _text_bytes(self, split: str) -> np.ndarray | None:
        tokenizer = self.dataset.tokenizer
        if tokenizer is None:
            return None
        if split not in self._bytes:
            self._bytes[split] = scored_bytes(self.dataset.split(split), tokenizer, self.apart)
        return self._bytes[split]

    @cached_property
    def _documents(self) -> tuple[list[int], list[slice]]:
        return all_documents(self.dataset.split("test"))


def _prompts(rows: Columns, directory: Path) -> tuple[list[dict[str, Any]], list[Columns]]:
    """Beginnings of the first document of each row, and rows of their tokens, all but the first of which are scored."""
    texts = decoded([_first(*row) for row in zip(rows["input_ids"], rows["position_ids"], strict=True)], directory)
    instances, tokens = prompts_to_send(texts, directory, rows["input_ids"].shape[1])
    return instances, [_row_of(each) for each in tokens]


def _first(tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """The tokens of the first document of a row."""
    starts = np.flatnonzero(positions == 0)
    return tokens[: starts[1]] if len(starts) > 1 else tokens


def _row_of(tokens: np.ndarray) -> Columns:
    positions = np.arange(len(tokens), dtype=np.int32)
    return {
        "input_ids": tokens[None],
        "loss_mask": np.ones((1, len(tokens)), dtype=np.uint8),
        "position_ids": positions[None],
    }


def _by_length(columns: Columns) -> list[np.ndarray]:
    """Documents in groups of similar length, so that little of a batch is padding."""
    lengths = columns["loss_mask"].shape[1] - np.argmax(columns["loss_mask"][:, ::-1] != 0, axis=1)
    order = np.argsort(lengths, kind="stable")
    groups = np.minimum(np.log2(np.maximum(lengths[order], 8)).astype(int), 30)
    return np.split(order, np.flatnonzero(np.diff(groups)) + 1)


def scored_bytes(split: Split, tokenizer_directory: Path, apart: bool) -> np.ndarray:
    """UTF-8 bytes of the scored tokens, float64 (rows or documents,); special tokens are not text.

    Args:
        split: of a language model's dataset.
        tokenizer_directory: the tokenizer that it was made with.
        apart: whether documents are scored, not rows.
    """
    tokenizer = load_tokenizer(tokenizer_directory)
    of_tokens = _bytes_of_tokens(tokenizer)
    rows = []
    for columns in split.columns(0, len(split)):
        tokens = columns["input_ids"]
        scored = (columns["loss_mask"] != 0) & (columns["position_ids"] != 0)
        if of_tokens is not None:
            rows.append(np.where(scored, of_tokens[tokens], 0))
        else:
            # What a token adds to a text depends on its neighbours; it is spread over the scored ones of the row. The
            # first token of a text loses its blank, so the token before the scored ones is decoded too, and taken off.
            before = scored & (np.cumsum(scored, axis=1) == 1)
            before = np.pad(before[:, 1:], ((0, 0), (0, 1)))
            sizes = _sizes(tokenizer, tokens, before | scored) - _sizes(tokenizer, tokens, before)
            rows.append(scored * (sizes / np.maximum(scored.sum(axis=1), 1))[:, None])
    found = np.concatenate(rows).astype(np.float64)
    if not apart:
        return found.sum(axis=1)
    return np.array([found[row, place].sum() for row, place in zip(*all_documents(split), strict=True)])


def _sizes(tokenizer: Any, tokens: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """UTF-8 bytes of the text of the chosen tokens of each row."""
    texts = tokenizer.decode_batch([row[mask].tolist() for row, mask in zip(tokens, chosen, strict=True)])
    return np.array([len(text.encode("utf-8")) for text in texts])


def _bytes_of_tokens(tokenizer: Any) -> np.ndarray | None:
    """Bytes of each token of a byte-level tokenizer, in whose alphabet each letter is one byte; None for others."""
    if "ByteLevel" not in json.dumps(json.loads(tokenizer.to_str()).get("decoder")):
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    sizes = np.zeros(max(vocabulary.values()) + 1)
    for token, number in vocabulary.items():
        sizes[number] = len(token)
    for number, added in tokenizer.get_added_tokens_decoder().items():
        sizes[number] = 0 if added.special else len(added.content.encode("utf-8"))
    return sizes


def holds_completions(dataset: Dataset) -> bool:
    """Whether rows are prompts and completions: tokens that are not scored stand before tokens that are."""
    if not set(dataset.manifest.features) >= _FEATURES:
        return False
    split = dataset.split("test")
    for columns in split.columns(0, min(_LOOKED_AT, len(split))):
        scored, positions = columns["loss_mask"] != 0, columns["position_ids"]
        # The first token of a text is never scored; the second one is, unless it belongs to a prompt.
        if ((~scored[:, 1:-1]) & (positions[:, 1:-1] > 0) & scored[:, 2:] & (positions[:, 2:] > 0)).any():
            return True
    return False


def documents_of(columns: Columns) -> Iterator[tuple[int, slice]]:
    """Finds the documents that have tokens to score, in order.

    Args:
        columns: `position_ids` and `loss_mask` of the rows, int (rows, tokens).

    Yields:
        The index of the row, and the place of the document in it.
    """
    for row, (positions, mask) in enumerate(zip(columns["position_ids"], columns["loss_mask"], strict=True)):
        ends = [*np.flatnonzero(positions == 0).tolist(), len(positions)]
        for start, stop in pairwise(ends):
            if mask[start + 1 : stop].any():
                yield row, slice(start, stop)


def taken_apart(columns: Columns) -> Columns:
    """Rows of one document each, as wide as the longest; shorter ones end in padding that is not scored."""
    places = list(documents_of(columns))
    width = max((place.stop - place.start for _, place in places), default=2)
    shape = (len(places), width)
    apart = {name: np.zeros(shape, columns[name].dtype) for name in _FEATURES}
    apart["position_ids"][:] = np.arange(width)
    for number, (row, place) in enumerate(places):
        length = place.stop - place.start
        for name in ("input_ids", "loss_mask"):
            apart[name][number, :length] = columns[name][row, place]
    return apart


def all_documents(split: Split) -> tuple[list[int], list[slice]]:
    """The row of each document of a split and its place in the row, in the order in which they are scored."""
    rows: list[int] = []
    places: list[slice] = []
    first = 0
    for columns in split.columns(0, len(split)):
        for row, place in documents_of(columns):
            rows.append(first + row)
            places.append(place)
        first += len(columns["input_ids"])
    return rows, places

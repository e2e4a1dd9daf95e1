"""Scores tokens; prompts with completions each for itself, whatever row they stand in."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.evaluation.likelihood_metrics import LikelihoodScores
from gpu_pipelines.evaluation.loss_scoring import LossScoring
from gpu_pipelines.evaluation.scoring import Columns
from gpu_pipelines.tasks.batch_encoding import BatchEncoder
from gpu_pipelines.tasks.causal_lm.documents import all_documents, holds_completions, taken_apart
from gpu_pipelines.tasks.causal_lm.text_bytes import scored_bytes
from gpu_pipelines.tasks.instances import decoded

#: A prompt is short, so that any server takes it.
PROMPT_CHARACTERS = 200


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
        if self.dataset.manifest.tokenizer is None:
            return []
        return self._worst_texts(scores, self._documents if self.apart else None)

    def slice_values(self, column: str) -> list[str]:
        values = super().slice_values(column)
        return [values[row] for row in self._documents[0]] if self.apart else values

    def examples(self, rows: Columns) -> tuple[list[dict[str, Any]], list[Columns]] | None:
        tokenizer = self.dataset.manifest.tokenizer
        return _prompts(rows, self.dataset.directory / tokenizer) if tokenizer else None

    def prediction(self, predicted: np.ndarray, labels: list[str], instance: dict[str, Any]) -> dict[str, Any]:
        return {"loss": float(predicted[0] / predicted[1]), "tokens": int(predicted[1])}

    def _text_bytes(self, split: str) -> np.ndarray | None:
        tokenizer = self.dataset.manifest.tokenizer
        if tokenizer is None:
            return None
        if split not in self._bytes:
            directory = self.dataset.directory / tokenizer
            self._bytes[split] = scored_bytes(self.dataset.split(split), directory, self.apart)
        return self._bytes[split]

    @cached_property
    def _documents(self) -> tuple[list[int], list[slice]]:
        return all_documents(self.dataset.split("test"))


def _prompts(rows: Columns, directory: Path) -> tuple[list[dict[str, Any]], list[Columns]]:
    """Beginnings of the first document of each row, and rows of their tokens, all but the first of which are scored."""
    texts = decoded([_first(*row) for row in zip(rows["input_ids"], rows["position_ids"], strict=True)], directory)
    prompts = list(dict.fromkeys(text[:PROMPT_CHARACTERS].strip() for text in texts))
    made = []
    width = rows["input_ids"].shape[1]
    for prompt, encoded in zip(prompts, BatchEncoder(directory).completions([(p, "") for p in prompts]), strict=True):
        tokens = encoded.tokens[encoded.targets == 0]
        if prompt and 2 <= len(tokens) <= width:
            made.append((prompt, _row_of(tokens)))
    return [{"prompt": prompt} for prompt, _ in made], [columns for _, columns in made]


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

"""Serves text classification: texts, encoded as `prepare_data` encodes them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gpu_pipelines.serving.predictor import row_or_why_not
from gpu_pipelines.serving.preparation import PIXELS_OF_A_CHARACTER, Pending
from gpu_pipelines.serving.request_body import checked_text, text_of
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.batch_encoding import BatchEncoder
from gpu_pipelines.tasks.classification.predictions import ClassPredictor
from gpu_pipelines.tasks.text_classification.recipe import TextClassification


class _Row(NamedTuple):
    tokens: np.ndarray
    top_k: int


class TextClassifier(ClassPredictor):
    """A classifier of texts; see `Predictor`.

    Args:
        directory: the exported model.
        settings: limits of texts.
        device: where the model goes.
    """

    field = "text"
    example = {"text": "a text"}  # noqa: RUF012 (read only)

    def __init__(self, directory: Path, settings: ServerSettings, device: torch.device) -> None:
        self.device = device
        self._recipe = TextClassification.for_exported(directory)
        self.labels = list(self._recipe.labels)
        self._model = self._recipe.load_exported(directory).to(device).eval()
        self._encoder = BatchEncoder(directory)
        # The encoder sets up truncation for each call.
        self._encoding = threading.Lock()
        self._max_characters = settings.max_characters

    def read(self, instance: Any, parameters: int) -> Pending:
        text = text_of(instance, "text", self._max_characters)
        return Pending(len(text) * PIXELS_OF_A_CHARACTER, lambda: self._encoded(text, parameters))

    def _encoded(self, text: str, parameters: int) -> _Row:
        with self._encoding:
            return _Row(self._encoder.classified([text], self._recipe.sequence_length)[0], parameters)

    def rows_of(self, values: Sequence[Any], parameters: int) -> list[Any]:
        texts = [row_or_why_not(partial(checked_text, value, "text", self._max_characters)) for value in values]
        with self._encoding:
            right = [text for text in texts if isinstance(text, str)]
            encoded = iter(self._encoder.classified(right, self._recipe.sequence_length))
        return [_Row(next(encoded), parameters) if isinstance(text, str) else text for text in texts]

    def columns(self, rows: Sequence[_Row]) -> dict[str, np.ndarray]:
        """The rows of requests as those of a dataset."""
        lengths = np.array([len(row.tokens) for row in rows], dtype=np.int32)
        tokens = np.full((len(rows), self._recipe.sequence_length), self._recipe.tokenizer.padding, dtype=np.int32)
        for place, row in enumerate(rows):
            tokens[place, : len(row.tokens)] = row.tokens
        return {"input_ids": tokens, "length": lengths, "label": np.zeros(len(rows), dtype=np.int32)}

    def rows_of_dataset(self, columns: Mapping[str, np.ndarray]) -> list[Any]:
        each = zip(columns["input_ids"], columns["length"], strict=True)
        return [_Row(tokens[:length], len(self.labels)) for tokens, length in each]

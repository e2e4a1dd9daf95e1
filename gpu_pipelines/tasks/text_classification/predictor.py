"""Serves text classification: texts, encoded as `prepare_data` encodes them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gpu_pipelines.serving.predictor import TEXTS, Inputs, row_or_why_not
from gpu_pipelines.serving.preparation import PIXELS_OF_A_CHARACTER, Pending
from gpu_pipelines.serving.request_body import WrongRequest, checked_text, texts_of
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.batch_encoding import BatchEncoder, TextRow, columns_of_rows, rows_in_columns
from gpu_pipelines.tasks.classification.predictions import ClassPredictor
from gpu_pipelines.tasks.instances import PAIR, as_instance
from gpu_pipelines.tasks.text_classification.recipe import TextClassification
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer


class _Row(NamedTuple):
    encoded: TextRow
    top_k: int


class TextClassifier(ClassPredictor):
    """A classifier of texts, or of pairs of texts; see `Predictor`.

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
        if self._encoder.takes_pairs:
            self.field, self.pair = PAIR
            self.example = as_instance(("a text", "another text"))
        # The encoder sets up truncation for each call.
        self._encoding = threading.Lock()
        self._max_characters = settings.max_characters

    @classmethod
    def inputs_of(cls, directory: Path) -> Inputs:
        takes_pairs = TextTokenizer.read(directory).takes_pairs
        return Inputs(TEXTS, cls.field, pair=PAIR[1] if takes_pairs else "")

    def read(self, instance: Any, parameters: int) -> Pending:
        texts = texts_of(instance, self.fields, self._max_characters)
        text = texts if len(texts) > 1 else texts[0]
        return Pending(sum(map(len, texts)) * PIXELS_OF_A_CHARACTER, lambda: self._encoded([text], parameters)[0])

    def _encoded(self, texts: Sequence[Any], parameters: int) -> list[_Row]:
        with self._encoding:
            return [_Row(row, parameters) for row in self._encoder.rows(texts, self._recipe.sequence_length)]

    def rows_of(self, values: Sequence[Any], parameters: int) -> list[Any]:
        texts = [row_or_why_not(partial(self._checked, value)) for value in values]
        rows = iter(self._encoded([text for text in texts if not isinstance(text, WrongRequest)], parameters))
        return [text if isinstance(text, WrongRequest) else next(rows) for text in texts]

    def _checked(self, value: Any) -> Any:
        for name, text in zip(self.fields, value if self._encoder.takes_pairs else [value], strict=True):
            checked_text(text, name, self._max_characters)
        return value

    def columns(self, rows: Sequence[_Row]) -> dict[str, np.ndarray]:
        """The rows of requests as those of a dataset."""
        length, padding = self._recipe.sequence_length, self._recipe.tokenizer.padding
        found = columns_of_rows([row.encoded for row in rows], length, padding)
        return {**found, "label": np.zeros(len(rows), dtype=np.int32)}

    def rows_of_dataset(self, columns: Mapping[str, np.ndarray]) -> list[Any]:
        return [_Row(row, len(self.labels)) for row in rows_in_columns(columns)]

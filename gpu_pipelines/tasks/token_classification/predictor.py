"""Serves token classification: the entities in a text, in the form of Hugging Face's pipelines."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gpu_pipelines.serving.predictor import Predictor
from gpu_pipelines.serving.preparation import PIXELS_OF_A_CHARACTER, Pending
from gpu_pipelines.serving.request_body import WrongRequest, text_of
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.text_recipe import encoder_logits
from gpu_pipelines.tasks.token_classification.recipe import TokenClassification
from gpu_pipelines.tasks.token_classification.scoring import as_answer
from gpu_pipelines.tasks.token_classification.words import WordEncoder, entities_in, words_in


class _Row(NamedTuple):
    text: str
    tokens: np.ndarray
    begins: np.ndarray


class Tagger(Predictor):
    """A model of entities; see `Predictor`."""

    field = "text"
    example = {"text": "a text"}  # noqa: RUF012 (read only)
    answer = {  # noqa: RUF012 (read only)
        "type": "object",
        "properties": {"entities": {"type": "array", "items": {"type": "object"}}},
        "required": ["entities"],
    }

    def __init__(self, directory: Path, settings: ServerSettings, device: torch.device) -> None:
        self.device = device
        self._recipe = TokenClassification.for_exported(directory)
        self._model = self._recipe.load_exported(directory).to(device).eval()
        self._encoder = WordEncoder(directory, self._recipe.sequence_length)
        self._encoding = threading.Lock()
        self._max_characters = settings.max_characters

    def read(self, instance: Any, parameters: Any) -> Pending:
        text = text_of(instance, "text", self._max_characters)
        return Pending(len(text) * PIXELS_OF_A_CHARACTER, lambda: self._encoded(text))

    def _encoded(self, text: str) -> _Row:
        words = [word for word, _ in words_in(text)]
        if not words:
            raise WrongRequest("text has no words. Send a text.")
        with self._encoding:
            return _Row(text, *self._encoder.encode([words])[0])

    def columns(self, rows: Sequence[_Row]) -> dict[str, np.ndarray]:
        lengths = np.array([len(row.tokens) for row in rows], dtype=np.int32)
        tokens, begins = np.zeros((2, len(rows), lengths.max()), dtype=np.int32)
        for place, row in enumerate(rows):
            tokens[place, : len(row.tokens)], begins[place, : len(row.tokens)] = row.tokens, row.begins >= 0
        return {"tokens": tokens, "tokens_length": lengths, "tags": begins}

    def rows_of_dataset(self, columns: Mapping[str, np.ndarray]) -> list[Any]:
        found = []
        for tokens, tags, length in zip(columns["tokens"], columns["tags"], columns["tokens_length"], strict=True):
            begins = np.where(tags[:length] > 0, 0, -1)
            # Which words they are is not kept, and nobody asks.
            found.append(_Row(" ".join("x" * int((begins >= 0).sum())), tokens[:length], begins))
        return found

    def predict(self, rows: Sequence[_Row]) -> list[dict[str, Any]]:
        with torch.inference_mode():
            batch = self._recipe.batch(self.columns(rows), self.device)
            probabilities = encoder_logits(self._model, batch).softmax(dim=-1).cpu().numpy()
        return [self._prediction(row, found) for row, found in zip(rows, probabilities, strict=True)]

    def _prediction(self, row: _Row, probabilities: np.ndarray) -> dict[str, Any]:
        of_words = probabilities[: len(row.begins)][row.begins >= 0]
        chosen = of_words.argmax(axis=1)
        entities = entities_in([self._recipe.tags[number] for number in chosen])
        scores = [float(of_words[e.first : e.last + 1].max(axis=1).mean()) for e in entities]
        answers = as_answer(row.text, entities)
        return {"entities": [{**answer, "score": score} for answer, score in zip(answers, scores, strict=True)]}

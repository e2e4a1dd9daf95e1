"""Serves token classification: the entities in a text, in the form of Hugging Face's pipelines."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gpu_pipelines.serving.predictor import TEXTS, Inputs, Predictor
from gpu_pipelines.serving.preparation import PIXELS_OF_A_CHARACTER, Pending
from gpu_pipelines.serving.request_body import WrongRequest, text_of
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.text_recipe import encoder_logits
from gpu_pipelines.tasks.token_classification.recipe import TokenClassification
from gpu_pipelines.tasks.token_classification.scoring import as_answer
from gpu_pipelines.tasks.token_classification.words import WordEncoder, entities_in, is_word, placed, words_in

#: Columns that hold words, as those that are trained with.
_COLUMNS = ("tokens", "words")


class _Row(NamedTuple):
    text: str
    words: Sequence[tuple[str, int]]
    tokens: np.ndarray
    begins: np.ndarray


class Tagger(Predictor):
    """A model of entities; see `Predictor`."""

    field = "text"
    value = {  # noqa: RUF012 (read only)
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
    }
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

    @classmethod
    def inputs_of(cls, directory: Path) -> Inputs:
        return Inputs(TEXTS, cls.field, words=_COLUMNS)

    def read(self, instance: Any, parameters: Any) -> Pending:
        given = instance.get("text") if isinstance(instance, dict) else None
        if isinstance(given, list):
            _require_words(given)
            text, words = text_of({**instance, "text": " ".join(given)}, "text", self._max_characters), placed(given)
        else:
            text = text_of(instance, "text", self._max_characters)
            words = words_in(text)
        return Pending(len(text) * PIXELS_OF_A_CHARACTER, lambda: self._encoded(text, words))

    def _encoded(self, text: str, words: Sequence[tuple[str, int]]) -> _Row:
        if not words:
            raise WrongRequest("text has no words. Send a text.")
        with self._encoding:
            return _Row(text, words, *self._encoder.encode([[word for word, _ in words]])[0])

    def columns(self, rows: Sequence[_Row]) -> dict[str, np.ndarray]:
        lengths = np.array([len(row.tokens) for row in rows], dtype=np.int32)
        tokens, begins = np.zeros((2, len(rows), lengths.max()), dtype=np.int32)
        for place, row in enumerate(rows):
            tokens[place, : len(row.tokens)], begins[place, : len(row.tokens)] = row.tokens, row.begins >= 0
        return {"tokens": tokens, "tokens_length": lengths, "tags": begins}

    def rows_of_dataset(self, columns: Mapping[str, np.ndarray]) -> list[Any]:
        found = []
        for tokens, tags, length in zip(columns["tokens"], columns["tags"], columns["tokens_length"], strict=True):
            are_first = tags[:length] > 0
            begins = np.where(are_first, np.cumsum(are_first) - 1, -1)
            # Which words they are is not kept, and nobody asks.
            words = ["x"] * int(are_first.sum())
            found.append(_Row(" ".join(words), placed(words), tokens[:length], begins))
        return found

    def predict(self, rows: Sequence[_Row]) -> list[dict[str, Any]]:
        with torch.inference_mode():
            batch = self._recipe.batch(self.columns(rows), self.device)
            probabilities = encoder_logits(self._model, batch).softmax(dim=-1).cpu().numpy()
        return [self._prediction(row, found) for row, found in zip(rows, probabilities, strict=True)]

    def _prediction(self, row: _Row, probabilities: np.ndarray) -> dict[str, Any]:
        of_words = probabilities[: len(row.begins)][row.begins >= 0]
        # A word that the tokenizer leaves out, such as the mark that makes an emoji coloured, has no token.
        words = [row.words[number] for number in row.begins[row.begins >= 0]]
        chosen = of_words.argmax(axis=1)
        entities = entities_in([self._recipe.tags[number] for number in chosen])
        scores = [float(of_words[e.first : e.last + 1].max(axis=1).mean()) for e in entities]
        answers = as_answer(row.text, words, entities)
        return {"entities": [{**answer, "score": score} for answer, score in zip(answers, scores, strict=True)]}


def _require_words(given: Sequence[Any]) -> None:
    wrong = next((word for word in given if not (isinstance(word, str) and is_word(word))), None)
    if not given or wrong is not None:
        told = f"has {wrong!r:.60}" if given else "is empty"
        raise WrongRequest(f"text {told}, and is a list. Send a text, or a list of words without blanks in them.")

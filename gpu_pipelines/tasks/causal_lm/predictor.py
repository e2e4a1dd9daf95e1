"""Serves small language models: the loss of a prompt, and a short continuation. Large ones are vLLM's; see vllm.py."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gpu_pipelines.data.text.packing import last_piece
from gpu_pipelines.data.text.sources import CHATS
from gpu_pipelines.numbers import finite_or_none
from gpu_pipelines.serving.batching import Unfinished
from gpu_pipelines.serving.predictor import TEXTS, Inputs, Predictor, row_or_why_not, tensor
from gpu_pipelines.serving.preparation import PIXELS_OF_A_CHARACTER, Pending
from gpu_pipelines.serving.request_body import WrongRequest, checked_text, require_keys, text_of, whole_parameter
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.batch_encoding import BatchEncoder
from gpu_pipelines.tasks.causal_lm.chats import INSTANCE, asked, before_learned, characters_of, chat_of, ends_of_answers
from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel
from gpu_pipelines.tasks.causal_lm.writing import Text, writer_of
from gpu_pipelines.tasks.text_encoding import Chat
from gpu_pipelines.tasks.text_tokenizer import load_tokenizer


class _Row(NamedTuple):
    tokens: np.ndarray
    max_new_tokens: int


class LanguageModel(Predictor):
    """A causal language model; see `Predictor`.

    Args:
        directory: the exported model.
        settings: limits of prompts and of what is written for them.
        device: where the model goes.
    """

    field = "prompt"
    parameters = {"max_new_tokens": {"type": "integer", "minimum": 0}}  # noqa: RUF012 (read only)
    answer = {  # noqa: RUF012 (read only)
        "type": "object",
        "properties": {
            "loss": {"type": ["number", "null"]},
            "tokens": {"type": "integer"},
            "text": {"type": "string"},
        },
        "required": ["loss", "tokens"],
    }
    outputs = (("loss", "FP64", [-1]), ("tokens", "INT64", [-1]), ("text", "BYTES", [-1]))
    instance = INSTANCE
    example = {"prompt": "a prompt"}  # noqa: RUF012 (read only)

    def __init__(self, directory: Path, settings: ServerSettings, device: torch.device) -> None:
        self.device = device
        self._recipe = CausalLanguageModel.for_exported(directory)
        self._model: Any = self._recipe.load_exported(directory).to(device).eval()
        self._encoder = BatchEncoder(directory)
        self._end = int(self._encoder.documents(["a"])[0].tokens[-1])
        self._encoding = threading.Lock()
        self._tokenizer = load_tokenizer(directory)
        self._max_characters, self._max_new_tokens = settings.max_characters, settings.max_new_tokens
        self._writer = writer_of(self._model, self._recipe.tokenizer.padding, ends_of_answers(self._encoder))
        self.writes_at_once = settings.max_batch if self._writer.joins_rows else 1

    @classmethod
    def inputs_of(cls, directory: Path) -> Inputs:
        return Inputs(TEXTS, cls.field, chats=CHATS)

    def checked(self, parameters: Mapping[str, Any]) -> int:
        require_keys(parameters, ("max_new_tokens",), "parameters")
        return whole_parameter(parameters, "max_new_tokens", 0, self._max_new_tokens)

    def read(self, instance: Any, parameters: int) -> Pending:
        if chat := chat_of(instance):
            if (length := characters_of(chat)) > self._max_characters:
                raise WrongRequest(f"messages has {length:,} characters; send at most {self._max_characters:,}.")
            return Pending(length * PIXELS_OF_A_CHARACTER, lambda: self._asked(chat, parameters))
        text = text_of(instance, "prompt", self._max_characters)
        return Pending(len(text) * PIXELS_OF_A_CHARACTER, lambda: self._encoded(text, parameters))

    def pending_of(self, value: Any, parameters: int) -> Pending:
        return self.read(value if isinstance(value, dict) else {self.field: value}, parameters)

    def _asked(self, chat: Chat, parameters: int) -> _Row:
        with self._encoding:
            tokens = asked(self._encoder, chat)
        return self._fitting(tokens, parameters)

    def _encoded(self, text: str, parameters: int) -> _Row:
        with self._encoding:
            encoded = self._encoder.completions([(text, "")])[0]
        return self._fitting(encoded.tokens[encoded.targets == 0], parameters)

    def _fitting(self, tokens: np.ndarray, parameters: int) -> _Row:
        longest = self._recipe.sequence_length
        if len(tokens) + parameters > longest:
            new = f" and max_new_tokens is {parameters:,}" if parameters else ""
            raise WrongRequest(f"prompt has {len(tokens):,} tokens{new}; the model takes {longest:,} in all.")
        if not len(tokens):
            raise WrongRequest("prompt has no tokens. Send a text.")
        return _Row(tokens, parameters)

    def rows_of_documents(self, values: Sequence[Any], parameters: int) -> list[Any]:
        """Training cuts a document that is too long, and `rows_of_dataset` gives of it what does not fill a row."""
        found = []
        for value in values:
            row = row_or_why_not(partial(self._last_part, value, parameters))
            if row is not None:
                found.append(row)
        return found

    def _last_part(self, value: Any, parameters: int) -> _Row | None:
        if chat := chat_of(value):
            with self._encoding:
                return _Row(before_learned(self._encoder, chat, self._recipe.sequence_length), parameters)
        text = checked_text(value, "text", self._max_characters)
        with self._encoding:
            tokens = self._encoder.documents([text])[0].tokens
        longest = self._recipe.sequence_length
        if len(tokens) <= longest:
            return self._encoded(text, parameters)
        part = last_piece(tokens, longest)
        return _Row(part[:-1] if part[-1] == self._end else part, parameters) if len(part) < longest else None

    def columns(self, rows: Sequence[_Row]) -> dict[str, np.ndarray]:
        width = max(len(row.tokens) for row in rows)
        tokens = np.full((len(rows), width), self._recipe.tokenizer.padding, dtype=np.int32)
        mask = np.zeros((len(rows), width), dtype=np.uint8)
        positions = np.zeros((len(rows), width), dtype=np.int32)
        for place, row in enumerate(rows):
            own = len(row.tokens)
            tokens[place, :own], mask[place, :own] = row.tokens, 1
            # Padding is a document of its own, as in training.
            positions[place] = np.concatenate([np.arange(own), np.arange(width - own)])
        return {"input_ids": tokens, "loss_mask": mask, "position_ids": positions}

    def rows_of_dataset(self, columns: Mapping[str, np.ndarray]) -> list[Any]:
        if "prompt" in columns:  # of preferences
            each = zip(columns["prompt"], columns["prompt_length"], strict=True)
            found = [tokens[:length] for tokens, length in each]
        else:
            tokens, masks, positions = (columns[name] for name in ("input_ids", "loss_mask", "position_ids"))
            rows = zip(tokens, masks, positions, strict=True)
            found = [piece for of_row in rows for piece in _asked(*of_row, self._end)]
        longest = self._recipe.sequence_length
        return [_Row(tokens, 0) for tokens in found if 0 < len(tokens) <= longest]

    def predict(self, rows: Sequence[_Row]) -> list[Any]:
        with torch.inference_mode():
            batch = self._recipe.batch(self.columns(rows), self.device)
            sums = self._recipe.predict(self._model, batch).cpu().numpy()
            return [self._prediction(row, found) for row, found in zip(rows, sums, strict=True)]

    def tensors(self, predictions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """`loss`, `tokens` and, where it was continued, `text`."""
        return [
            tensor(name, datatype, [len(predictions)], [each[name] for each in predictions])
            for name, datatype, _ in self.outputs
            if name in predictions[0]
        ]

    def advance(self, texts: Sequence[_Continuation], others_wait: Callable[[], bool]) -> None:
        """Writes on for a while; see `writing.Writer`."""
        with torch.inference_mode():
            self._writer.write(texts, others_wait)
        for text in texts:
            if text.is_done:
                written = self._tokenizer.decode(text.tokens[text.begun :], skip_special_tokens=True)
                text.prediction = {**text.scored, "text": written}

    @staticmethod
    def _prediction(row: _Row, sums: np.ndarray) -> dict[str, Any] | _Continuation:
        loss = float(sums[0] / sums[1]) if sums[1] else math.nan
        scored = {"loss": finite_or_none(loss), "tokens": int(sums[1])}
        return _Continuation(row, scored) if row.max_new_tokens else scored


def _asked(tokens: np.ndarray, mask: np.ndarray, positions: np.ndarray, end: int) -> Iterator[np.ndarray]:
    """What somebody would ask of each document that is whole in a packed row: its prompt, else all but its end."""
    starts = [*np.flatnonzero(positions == 0).tolist(), len(positions)]
    for start, stop in pairwise(starts):
        learned = np.flatnonzero(mask[start:stop])
        # Padding, and what fills a row alone: nearly always a part of something longer.
        if not len(learned) or stop - start == len(positions):
            continue
        if learned[0] > 1:
            yield tokens[start : start + learned[0]]
        else:
            yield tokens[start : stop - 1] if tokens[stop - 1] == end else tokens[start:stop]


class _Continuation(Unfinished, Text):
    """A prompt that was scored and is being continued."""

    def __init__(self, row: _Row, scored: dict[str, Any]) -> None:
        super().__init__(row.tokens.tolist(), row.max_new_tokens)
        self.work = row.max_new_tokens
        self.scored = scored

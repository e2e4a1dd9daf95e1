"""Serves small language models: the loss of a prompt, and a short continuation. Large ones are vLLM's; see vllm.py."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gpu_pipelines.recipes.batch_encoding import BatchEncoder
from gpu_pipelines.recipes.causal_lm import CausalLanguageModel
from gpu_pipelines.serving.request_body import WrongRequest, require_keys, text_of, whole_parameter
from gpu_pipelines.serving.settings import ServerSettings


class _Row(NamedTuple):
    tokens: np.ndarray
    max_new_tokens: int


class LanguageModel:
    """A causal language model; see `Predictor`.

    Args:
        directory: the exported model.
        settings: limits of prompts and of what is written for them.
        device: where the model goes.
    """

    task = "causal_lm"
    example = {"prompt": "a prompt"}  # noqa: RUF012 (read only)

    def __init__(self, directory: Path, settings: ServerSettings, device: torch.device) -> None:
        from tokenizers import Tokenizer

        self.device = device
        self._recipe = CausalLanguageModel.for_exported(directory)
        self._model: Any = self._recipe.load_exported(directory).to(device).eval()
        self._encoder = BatchEncoder(directory)
        self._encoding = threading.Lock()
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._max_characters, self._max_new_tokens = settings.max_characters, settings.max_new_tokens

    def checked(self, parameters: Mapping[str, Any]) -> int:
        require_keys(parameters, ("max_new_tokens",), "parameters")
        return whole_parameter(parameters, "max_new_tokens", 0, self._max_new_tokens)

    def prepare(self, instance: Any, parameters: int) -> _Row:
        text = text_of(instance, "prompt", self._max_characters)
        with self._encoding:
            encoded = self._encoder.completions([(text, "")])[0]
        tokens = encoded.tokens[encoded.targets == 0]
        longest = self._recipe.sequence_length
        if len(tokens) + parameters > longest:
            new = f" and max_new_tokens is {parameters:,}" if parameters else ""
            raise WrongRequest(f"prompt has {len(tokens):,} tokens{new}; the model takes {longest:,} in all.")
        if not len(tokens):
            raise WrongRequest("prompt has no tokens. Send a text.")
        return _Row(tokens, parameters)

    def predict(self, rows: Sequence[_Row]) -> list[dict[str, Any]]:
        width = max(len(row.tokens) for row in rows)
        tokens = np.full((len(rows), width), self._recipe.tokenizer.padding, dtype=np.int32)
        mask = np.zeros((len(rows), width), dtype=np.uint8)
        positions = np.zeros((len(rows), width), dtype=np.int32)
        for place, row in enumerate(rows):
            own = len(row.tokens)
            tokens[place, :own], mask[place, :own] = row.tokens, 1
            # Padding is a document of its own, as in training.
            positions[place] = np.concatenate([np.arange(own), np.arange(width - own)])
        columns: dict[str, np.ndarray] = {"input_ids": tokens, "loss_mask": mask, "position_ids": positions}
        with torch.inference_mode():
            sums = self._recipe.predict(self._model, self._recipe.batch(columns, self.device)).cpu().numpy()
            return [self._prediction(row, found) for row, found in zip(rows, sums, strict=True)]

    def _prediction(self, row: _Row, sums: np.ndarray) -> dict[str, Any]:
        loss = float(sums[0] / sums[1]) if sums[1] else math.nan
        found: dict[str, Any] = {"loss": loss if math.isfinite(loss) else None, "tokens": int(sums[1])}
        if row.max_new_tokens:
            found["text"] = self._continued(row)
        return found

    def _continued(self, row: _Row) -> str:
        """The most probable continuation, without sampling: the same prompt gets the same one."""
        tokens = torch.from_numpy(row.tokens.astype(np.int64))[None].to(self.device)
        written = self._model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=row.max_new_tokens,
            do_sample=False,
            use_cache=True,
            pad_token_id=self._recipe.tokenizer.padding,
        )
        text: str = self._tokenizer.decode(written[0, len(row.tokens) :].tolist(), skip_special_tokens=True)
        return text

"""Many texts to tokens at once with a saved tokenizer; but for chats without transformers, which takes seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.recipes.text_encoding import Encoded, TextEncoder
from gpu_pipelines.recipes.text_tokenizer import named_token


class BatchEncoder:
    """A tokenizer directory in Hugging Face layout, for encoding.

    Special tokens that stand in a text are text; those that begin and end one are added.

    Args:
        directory: as `TextEncoder.save` wrote it.
    """

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer

        self._directory = directory
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True
        self._config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
        self._end = named_token(self._tokenizer, self._config, "eos_token")
        self._ends = {self._end, named_token(self._tokenizer, self._config, "sep_token")} - {None}
        self._chats: TextEncoder | None = None

    def classified(self, texts: Sequence[str], longest: int) -> list[np.ndarray]:
        """Tokens of each text with the tokenizer's own begin and end, cut to `longest`; int32."""
        self._tokenizer.enable_truncation(longest, direction=self._config.get("truncation_side", "right"))
        found = self._tokenizer.encode_batch_fast(list(texts))
        self._tokenizer.no_truncation()
        return [np.array(encoding.ids, dtype=np.int32) for encoding in found]

    def documents(self, texts: Sequence[str]) -> list[Encoded]:
        """Texts that begin as the tokenizer begins texts and end with its end token; all of each is to be learned."""
        made = [
            self._opening(encoding.ids) + self._closing for encoding in self._tokenizer.encode_batch_fast(list(texts))
        ]
        return [Encoded(np.array(tokens, dtype=np.int32), np.ones(len(tokens), dtype=np.uint8)) for tokens in made]

    def completions(self, pairs: Sequence[tuple[str, str]]) -> list[Encoded]:
        """Prompts and what follows them; the completion and the end token alone are to be learned.

        The two are encoded apart, because a model that is asked for a completion gets the prompt encoded alone.
        """
        prompts = self._tokenizer.encode_batch_fast([prompt for prompt, _ in pairs])
        answers = self._tokenizer.encode_batch_fast([answer for _, answer in pairs], add_special_tokens=False)
        made = []
        for prompt, answer in zip(prompts, answers, strict=True):
            opening, rest = self._opening(prompt.ids), answer.ids + self._closing
            targets = np.zeros(len(opening) + len(rest), dtype=np.uint8)
            targets[len(opening) :] = 1
            made.append(Encoded(np.array(opening + rest, dtype=np.int32), targets))
        return made

    def chat(self, messages: list[dict[str, Any]]) -> Encoded:
        """A conversation, as `TextEncoder.chat` encodes it.

        Raises:
            CannotEncodeError: the chat template refuses it, or its answers cannot be told from the rest.
        """
        if self._chats is None:
            self._chats = TextEncoder.load(str(self._directory))
        return self._chats.chat(messages)

    @property
    def _closing(self) -> list[int]:
        return [] if self._end is None else [self._end]

    def _opening(self, tokens: list[int]) -> list[int]:
        while len(tokens) > 1 and tokens[-1] in self._ends:
            tokens = tokens[:-1]
        return tokens

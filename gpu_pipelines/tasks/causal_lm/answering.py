"""The prompts of a language model's dataset, and the answers that a model writes after them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.generation.port import Pair, TextTask, Written
from gpu_pipelines.tasks.causal_lm.scoring import documents_of, holds_completions
from gpu_pipelines.tasks.causal_lm.writing import Text, Writer, ends_of, writer_of
from gpu_pipelines.tasks.packed_attention import by_length
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer, load_tokenizer, special_tokens_of

#: Tokens of prompts that are read at once; nobody waits for a first answer.
_PROMPT_TOKENS = 16_384
#: Tokens that keys and values are kept of at most, those still to be written counted, but for a single longer text.
_TOKENS_AT_ONCE = 32_768
#: Documents that are looked at for how answers end.
_LOOKED_AT = 256


class Answering(TextTask):
    """The last answer of each document is its reference, and everything before it the prompt; see `TextTask`."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset)
        if dataset.tokenizer is None or not self._has_references():
            raise UserError(
                f"The rows of the dataset from {dataset.manifest.source} have no references: they are plain texts. "
                "generate compares the text that a model writes after a prompt with a reference.",
                "Prepare columns prompt and completion, or messages; or leave generate out.",
            )
        self._directory = dataset.tokenizer

    def pairs(self, split: str) -> list[Pair]:
        rows = self.dataset.split(split)
        found: list[tuple[int, np.ndarray, np.ndarray]] = []
        first = 0
        for columns in rows.columns(0, len(rows)):
            for row, prompt, answer in self._documents(columns):
                end = self._end_in(answer)
                found.append((first + row, prompt, answer if end is None else answer[:end]))
            first += len(next(iter(columns.values())))
        sources = rows.sources([row for row, _, _ in found])
        return [
            Pair(number, row, source, prompt, reference)
            for number, ((row, prompt, reference), source) in enumerate(zip(found, sources, strict=True))
        ]

    def _has_references(self) -> bool:
        return holds_completions(self.dataset)

    def _documents(self, columns: dict[str, np.ndarray]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """The row, the prompt and the answer of each document in some rows."""
        for row, place in documents_of(columns):
            yield (row, *_taken_apart(columns["input_ids"][row, place], columns["loss_mask"][row, place]))

    def text(self, tokens: Sequence[int], *, whole: bool = False) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=not whole))

    def write(self, loaded: Any, prompts: Sequence[np.ndarray], most: int) -> list[Written]:
        model = loaded.model
        if not hasattr(model, "generation_config") or not hasattr(model, "generate"):
            raise UserError(
                f"The recipe {type(loaded.recipe).__name__} builds {type(model).__name__}, which is not a model of "
                "transformers that writes text.",
                "Leave generate out.",
            )
        # Rows of several documents were attended to by their lengths, which text that is being written does not have.
        by_length(model, {})
        longest = getattr(model.config, "max_position_embeddings", None) or 2**31
        texts = [Text(prompt.tolist(), max(0, min(most, longest - len(prompt)))) for prompt in prompts]
        padding = TextTokenizer.read(self._directory).padding
        writer = writer_of(model, padding, self._ends, _PROMPT_TOKENS)
        waiting, going, at_once = deque(text for text in texts if text.most), list[Text](), len(texts)
        while waiting or going:
            while len(going) < at_once and waiting and _have_room((*going, waiting[0])):
                going.append(waiting.popleft())
            if not _has_written(writer, going):
                at_once = len(going) // 2
                going, later = going[:at_once], going[at_once:]
                waiting.extendleft(map(_begun_again, reversed(later)))
            going = [text for text in going if not text.is_done]
        ends = self._ends | ends_of(model)
        return [_written(text, ends) for text in texts]

    def write_with_vllm(self, model: Path, prompts: Sequence[np.ndarray], most: int) -> list[Written]:
        from gpu_pipelines.tasks.causal_lm.vllm_writing import written_by_vllm

        return written_by_vllm(model, self._directory, prompts, most, self._ends)

    @cached_property
    def _tokenizer(self) -> Any:
        return load_tokenizer(self._directory)

    @cached_property
    def _special(self) -> frozenset[int]:
        return special_tokens_of(self._tokenizer)

    @cached_property
    def _ends(self) -> set[int]:
        """The tokens that answers of the dataset end with: not all chat templates end them with the model's own."""
        rows = self.dataset.split("test")
        found = set()
        for columns in rows.columns(0, min(_LOOKED_AT, len(rows))):
            for _, _, answer in self._documents(columns):
                if (end := self._end_in(answer)) is not None:
                    found.add(int(answer[end]))
        return found

    def _end_in(self, answer: np.ndarray) -> int | None:
        """Place of the special token that ends an answer, behind which white space may stand; None if none does."""
        for place in range(len(answer) - 1, -1, -1):
            if int(answer[place]) in self._special:
                return place
            if self._tokenizer.decode([int(answer[place])], skip_special_tokens=False).strip():
                return None
        return None


def _taken_apart(tokens: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A document up to its last answer, and this answer."""
    scored = mask != 0
    scored[0] = False  # nothing stands before it
    end = len(scored) - int(np.argmax(scored[::-1]))
    begin = end - int(np.argmin(scored[:end][::-1]))
    return tokens[:begin].copy(), tokens[begin:end].copy()


def _has_written(writer: Writer, texts: Sequence[Text]) -> bool:
    """Goes on with texts; False where the memory is not enough for so many at once.

    Raises:
        torch.OutOfMemoryError: it is not enough for one.
    """
    try:
        writer.write(texts, lambda: any(text.cache is None for text in texts))
    except torch.OutOfMemoryError:
        if len(texts) == 1:
            raise
        return False
    return True


def _begun_again(text: Text) -> Text:
    """A text of which nothing is written, and nothing in memory."""
    text.tokens, text.cache = text.tokens[: text.begun], None
    return text


def _have_room(texts: Sequence[Text]) -> bool:
    return len(texts) == 1 or sum(text.begun + text.most for text in texts) <= _TOKENS_AT_ONCE


def _written(text: Text, ends: set[int]) -> Written:
    tokens = text.tokens[text.begun :]
    ended = bool(tokens) and tokens[-1] in ends
    return Written(tuple(tokens[:-1] if ended else tokens), ended)

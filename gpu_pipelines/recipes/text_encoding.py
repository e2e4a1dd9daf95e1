"""Texts to tokens, as data preparation needs it: a tokenizer is loaded or trained, texts and answers are encoded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.errors import UserError

PADDING, BEGIN, END = "<pad>", "<bos>", "<eos>"
SMALLEST_VOCABULARY = 512
LARGEST_CHOSEN_VOCABULARY = 8000
# What a tokenizer without a chat template gets; it is saved with the tokenizer, so that serving uses the same.
PLAIN_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Encoded:
    """Tokens of a text, int32, and for each whether it is to be predicted, uint8."""

    tokens: np.ndarray
    targets: np.ndarray


class CannotEncodeError(Exception):
    """A conversation that the chat template refuses, or in which the answers cannot be told from the rest."""


class TextEncoder:
    """A tokenizer of `transformers`.

    Args:
        tokenizer: a fast tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # It warns of texts longer than one row, which are cut into several.
        self._tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True

    @classmethod
    def load(cls, name: str) -> TextEncoder:
        """Loads the tokenizer of a local directory or a hub id.

        Raises:
            UserError: there is none.
        """
        from transformers import AutoTokenizer

        place = Path(name).expanduser()
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(place) if place.is_dir() else name, use_fast=True)
        except Exception as error:  # what a broken tokenizer.json raises is not documented
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(
                f"The tokenizer {name!r} cannot be loaded: {first}",
                "Give a local directory with a tokenizer.json, a hub id, or train.",
            ) from None
        if not tokenizer.is_fast:
            raise UserError(f"The tokenizer {name!r} has no tokenizer.json.", "Convert it with transformers first.")
        return cls(tokenizer)

    @classmethod
    def train(cls, texts: list[str], vocabulary_size: int, ends: bool) -> TextEncoder:
        """Trains a byte-level BPE tokenizer; every text can be written in it.

        Args:
            texts: of the training split alone.
            vocabulary_size: 0 takes one token for every 100 bytes of text, between 512 and 8,000.
            ends: whether an encoded text ends with the end token, as classifiers want it.
        """
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
        from transformers import PreTrainedTokenizerFast

        size = sum(len(text.encode()) for text in texts)
        chosen = vocabulary_size or int(np.clip(size // 100, SMALLEST_VOCABULARY, LARGEST_CHOSEN_VOCABULARY))
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=chosen,
            special_tokens=[PADDING, BEGIN, END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer, length=len(texts))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A {END}" if ends else f"{BEGIN} $A",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (BEGIN, END)],
        )
        return cls(
            PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PADDING, bos_token=BEGIN, eos_token=END)
        )

    def add_plain_chat_template(self) -> bool:
        """Gives a tokenizer without a chat template a plain one; returns whether it did."""
        if self._tokenizer.chat_template:
            return False
        if self._tokenizer.eos_token is None:
            raise UserError("The tokenizer has neither a chat template nor a token that ends an answer.")
        self._tokenizer.chat_template = PLAIN_CHAT_TEMPLATE
        return True

    def save(self, directory: Path, longest: int) -> None:
        """Writes the tokenizer in Hugging Face layout, with `longest` as the most tokens it gives a model."""
        usual = self._tokenizer.model_max_length
        self._tokenizer.model_max_length = longest
        self._tokenizer.save_pretrained(directory)
        self._tokenizer.model_max_length = usual

    def classified(self, texts: list[str], longest: int) -> list[np.ndarray]:
        """Tokens of each text with the tokenizer's own begin and end, cut to `longest`; int32."""
        found = self._tokenizer(texts, truncation=True, max_length=longest, split_special_tokens=True)
        return [np.asarray(tokens, dtype=np.int32) for tokens in found["input_ids"]]

    def document(self, text: str) -> Encoded:
        """A text that begins as the tokenizer begins texts and ends with its end token; all of it is to be learned."""
        tokens = [*self._opening(text), *self._end()]
        return Encoded(np.asarray(tokens, dtype=np.int32), np.ones(len(tokens), dtype=np.uint8))

    def completion(self, prompt: str, completion: str) -> Encoded:
        """A prompt and what follows it; the completion and the end token alone are to be learned.

        The two are encoded apart, because a model that is asked for a completion gets the prompt encoded alone.
        """
        opening = self._opening(prompt)
        rest = self._plain(completion) + self._end()
        tokens = np.asarray([*opening, *rest], dtype=np.int32)
        return Encoded(tokens, np.asarray([0] * len(opening) + [1] * len(rest), dtype=np.uint8))

    def chat(self, messages: list[dict[str, Any]]) -> Encoded:
        """A conversation in the tokenizer's chat template; the answers of the assistant are to be learned.

        Raises:
            CannotEncodeError: the template refuses it, or its answers cannot be told from the rest.
        """
        try:
            if "{% generation" in self._tokenizer.chat_template or "{%- generation" in self._tokenizer.chat_template:
                found = self._tokenizer.apply_chat_template(
                    messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
                )
                tokens, targets = found["input_ids"], found["assistant_masks"]
            else:
                tokens, targets = self._chat_by_prefixes(messages)
        except CannotEncodeError:
            raise
        except Exception as error:  # a template raises what it likes
            raise CannotEncodeError(f"the chat template refuses it: {error}") from None
        return Encoded(np.asarray(tokens, dtype=np.int32), np.asarray(targets, dtype=np.uint8))

    def _chat_by_prefixes(self, messages: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
        """Where a template does not mark the answers: what each message adds to the text of those before it."""
        whole = self._rendered(messages)
        spans = []
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                before = self._rendered(messages[:number], add_generation_prompt=True)
                after = self._rendered(messages[: number + 1])
                if not (whole.startswith(after) and after.startswith(before)):
                    raise CannotEncodeError("the chat template changes earlier messages when later ones follow")
                spans.append((len(before), len(after)))
        found = self._tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        starts = [start for start, _ in found["offset_mapping"]]
        return found["input_ids"], [int(any(low <= start < high for low, high in spans)) for start in starts]

    def _rendered(self, messages: list[dict[str, Any]], add_generation_prompt: bool = False) -> str:
        return self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt
        )

    def _opening(self, text: str) -> list[int]:
        tokens = self._tokenizer(text, split_special_tokens=True)["input_ids"]
        ends = {self._tokenizer.eos_token_id, self._tokenizer.sep_token_id} - {None}
        while len(tokens) > 1 and tokens[-1] in ends:
            tokens = tokens[:-1]
        return tokens

    def _plain(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    def _end(self) -> list[int]:
        end = self._tokenizer.eos_token_id
        return [] if end is None else [end]


def texts_of(records: Iterable[str | tuple[str, str] | list[dict[str, Any]]]) -> list[str]:
    """All text of some records, for training a tokenizer."""
    found: list[str] = []
    for text in records:
        if isinstance(text, str):
            found.append(text)
        else:
            found += [part if isinstance(part, str) else part["content"] for part in text]
    return found

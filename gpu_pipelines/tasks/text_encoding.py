"""The tokenizer of a data preparation: loaded or trained, saved, and used for chats through its template."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.errors import UserError, first_line
from gpu_pipelines.tasks.model_places import loaded_from, place_told
from gpu_pipelines.tasks.text_tokenizer import TEXT_PAIR

PADDING, BEGIN, END = "<pad>", "<bos>", "<eos>"
SMALLEST_VOCABULARY = 512
LARGEST_CHOSEN_VOCABULARY = 8000
# Where a run of characters without white space is broken for training; no token is as long.
LONG_WORD = r"(\S{256})(?=\S)"
# What a tokenizer without a chat template gets; it is saved with the tokenizer, so that serving uses the same.
PLAIN_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:\n' }}{% endif %}"
)


# What marks answers in a chat template, and text that no answer begins or ends like.
_MARKED_ANSWERS = r"\{%-?\s*generation\b"
_ANOTHER_ANSWER = "\ue000another answer\ue001"


@dataclass(frozen=True)
class Chat:
    """A conversation; the answers of the assistant are learned.

    Attributes:
        messages: each with `role` and `content`, or with what else the chat template knows, such as `tool_calls`; an
            answer whose `weight` is 0 is not learned.
        tools: JSON schemas of the functions that the assistant may call; None for none.
        given: number of messages at the beginning that are the prompt, of which nothing is learned.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    given: int = 0

    @property
    def learned(self) -> list[int]:
        """Places of the answers that are learned."""
        return [place for place in self._answers if self.messages[place].get("weight", 1)]

    @property
    def passed_over(self) -> list[int]:
        """Places of the answers behind the prompt that are not."""
        return [place for place in self._answers if not self.messages[place].get("weight", 1)]

    @property
    def _answers(self) -> list[int]:
        places = range(self.given, len(self.messages))
        return [place for place in places if self.messages[place]["role"] == "assistant"]


class Composed(ABC):
    """A record of several texts that belong together, as a task has them besides texts, completions and chats."""

    @property
    @abstractmethod
    def texts(self) -> list[str]:
        """All text of it."""

    @property
    @abstractmethod
    def has_messages(self) -> bool:
        """Whether parts of it are messages, which need a chat template."""

    @property
    @abstractmethod
    def content(self) -> Any:
        """The JSON value that decides its split."""


@dataclass(frozen=True)
class Encoded:
    """Tokens of a text, int32, and for each whether it is to be predicted, uint8."""

    tokens: np.ndarray
    targets: np.ndarray


class CannotEncodeError(Exception):
    """A conversation that the chat template refuses, or whose answers cannot be separated from the rest."""


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

        try:
            tokenizer = AutoTokenizer.from_pretrained(**loaded_from(name), use_fast=True)
        except Exception as error:  # what a broken tokenizer.json raises is not documented
            raise UserError(
                f"The tokenizer {place_told(name)} cannot be loaded: {first_line(error)}",
                "Give a local directory with a tokenizer.json, a hub id, or train.",
            ) from None
        if not tokenizer.is_fast:
            raise UserError(f"The tokenizer {name!r} has no tokenizer.json.", "Convert it with transformers first.")
        # transformers makes an empty one where there is a config.json alone: each text would be unknown to it.
        if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
            raise UserError(
                f"The tokenizer {place_told(name)} has no tokens: neither a tokenizer.json nor a vocabulary is there.",
                "Give the one that the model has learned with: its folder, or its hub id.",
            )
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
        # The trainer takes minutes for a word of 100,000 letters, as encoded binary data are.
        broken = (re.sub(LONG_WORD, r"\1\n", text) for text in texts)
        tokenizer.train_from_iterator(broken, trainer, length=len(texts))
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

    def add_pair_template(self) -> bool:
        """Lets a tokenizer that puts nothing between the two texts of a pair put its end there.

        Returns:
            Whether it was such a tokenizer.

        Raises:
            UserError: it has no token that ends a text.
        """
        from tokenizers import processors

        tokenizer = self._tokenizer.backend_tokenizer
        alone, pair = tokenizer.encode("a"), tokenizer.encode("a", "a")
        if None in pair.sequence_ids[pair.sequence_ids.index(0) : pair.sequence_ids.index(1)]:
            return False
        text = alone.sequence_ids.index(0), alone.sequence_ids.count(0)
        begins, ends = alone.tokens[: text[0]], alone.tokens[sum(text) :]
        between = ends or [token for token in (self._tokenizer.eos_token, self._tokenizer.sep_token) if token][:1]
        if not between:
            raise UserError(
                "The tokenizer puts nothing between the texts of a pair, and has no token that ends one.",
                "Give another tokenizer, such as that of the pretrained model.",
            )
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*begins, "$A", *ends],
            pair=[*begins, "$A", *between, "$B:1", *(f"{token}:1" for token in ends)],
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in dict.fromkeys([*begins, *between])],
        )
        return True

    def save(self, directory: Path, longest: int, takes_pairs: bool = False) -> None:
        """Writes the tokenizer in Hugging Face layout.

        Args:
            directory: where to.
            longest: the most tokens that it gives a model.
            takes_pairs: whether it is for pairs of texts.
        """
        usual = self._tokenizer.model_max_length
        self._tokenizer.model_max_length = longest
        if self._tokenizer.init_kwargs.pop(TEXT_PAIR, False):  # what `declare_inputs` wrote for pairs
            self._tokenizer.init_kwargs.pop("model_input_names", None)
        if takes_pairs:
            self._tokenizer.init_kwargs[TEXT_PAIR] = True
        self._tokenizer.save_pretrained(directory)
        self._tokenizer.model_max_length = usual

    def chat(self, chat: Chat) -> Encoded:
        """A conversation in the tokenizer's chat template; the answers of the assistant are to be learned.

        Raises:
            CannotEncodeError: the template refuses it, passes over a message, or its answers cannot be told from the
                rest.
        """
        template = self._tokenizer.chat_template
        try:
            self._require_shown(chat)
            if isinstance(template, str) and re.search(_MARKED_ANSWERS, template):
                found = self._applied(
                    chat.messages, tools=chat.tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
                )
                tokens, targets = found["input_ids"], found["assistant_masks"]
                given = self._given_tokens(chat, tokens)
                targets = [0] * given + targets[given:]
                if chat.passed_over:
                    _, others = self._answers_by_rendering(chat, chat.passed_over)
                    targets = [int(a and not b) for a, b in zip(targets, others, strict=True)]
            else:
                tokens, targets = self._answers_by_rendering(chat, chat.learned)
        except CannotEncodeError:
            raise
        except Exception as error:  # a template raises what it likes
            raise CannotEncodeError(f"the chat template refuses it: {error}") from None
        return Encoded(np.asarray(tokens, dtype=np.int32), np.asarray(targets, dtype=np.uint8))

    def conversation(self, chat: Chat, *, asks: bool = False) -> np.ndarray:
        """The tokens of a conversation in the tokenizer's chat template, int32.

        Args:
            chat: of which all messages are taken.
            asks: whether what begins an answer stands behind them; else they are learned, and all have to be shown.

        Raises:
            CannotEncodeError: the template refuses it, or passes over a message that is learned.
        """
        try:
            if not asks:
                self._require_shown(chat)
            return np.asarray(self._template_tokens(chat.messages, chat.tools, asks), dtype=np.int32)
        except CannotEncodeError:
            raise
        except Exception as error:  # a template raises what it likes
            raise CannotEncodeError(f"the chat template refuses it: {error}") from None

    def _require_shown(self, chat: Chat) -> None:
        """Raises CannotEncodeError where a message might as well be another one: what it says would be lost silently.

        Of an answer with calls of functions these alone are looked for: some templates leave out what is said beside.
        The system's message may be hidden: Mistral's shows it with a question that no answer follows.
        """
        whole = self._rendered(chat, chat.messages)
        for place, message in enumerate(chat.messages):
            content, calls = (message.get("content") or "").strip(), message.get("tool_calls")
            # Templates know who asks and who answers. What a function gave is often said again in the answer.
            is_told = message["role"] in ("user", "assistant") and not calls and content in whole
            if message["role"] == "system" or is_told:
                continue
            other = {"role": message["role"], "content": content if calls else _ANOTHER_ANSWER}
            changed = ""
            # A template that refuses the other one has looked at it.
            with suppress(Exception):
                changed = self._rendered(chat, [*chat.messages[:place], other, *chat.messages[place + 1 :]])
            if changed == whole:
                what = "the calls of functions in " if calls else ""
                raise CannotEncodeError(
                    f"the chat template does not show {what}message {place + 1}, of the role {message['role']!r}"
                )

    def _template_tokens(self, messages: list[dict[str, Any]], tools: list[Any] | None, asks: bool) -> list[int]:
        return self._applied(messages, tools=tools, tokenize=True, return_dict=True, add_generation_prompt=asks)[
            "input_ids"
        ]

    def _given_tokens(self, chat: Chat, tokens: list[int]) -> int:
        """Tokens of the prompt at the beginning of a conversation."""
        if not chat.given:
            return 0
        return shared_length(self._template_tokens(chat.messages[: chat.given], chat.tools, asks=True), tokens)

    def _answers_by_rendering(self, chat: Chat, places: list[int]) -> tuple[list[int], list[int]]:
        """The tokens of a conversation, and which are of the answers at some places, where no mark of the template
        tells: what the text has of each of them."""
        whole = self._rendered(chat, chat.messages)
        spans = [self._answer(chat, place, whole) for place in places]
        found = self._tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        # A token that begins in the template's own blank and ends in the answer is of the answer.
        return found["input_ids"], [
            int(any(start < high and low < end for low, high in spans)) for start, end in found["offset_mapping"]
        ]

    def _answer(self, chat: Chat, number: int, whole: str) -> tuple[int, int]:
        """Where an answer begins and ends in the text of the whole conversation, with the token that ends it.

        A template that writes the same whatever follows shows it by the text up to the answer and with it. One that
        does not, as where the thoughts of earlier answers are left out, shows it when the answer is another one.
        """
        # transformers renders no conversation without messages.
        before = self._rendered(chat, chat.messages[:number], add_generation_prompt=True) if number else ""
        after = self._rendered(chat, chat.messages[: number + 1])
        if before and after.startswith(before) and whole.startswith(after):
            return len(before), len(after)
        other = {"role": chat.messages[number]["role"], "content": _ANOTHER_ANSWER}
        changed = self._rendered(chat, [*chat.messages[:number], other, *chat.messages[number + 1 :]])
        start = shared_length(whole, changed)
        same = shared_length(whole[start:][::-1], changed[start:][::-1])
        end = len(whole) - same
        if _ANOTHER_ANSWER not in changed or start >= end:
            raise CannotEncodeError(f"the chat template does not show message {number + 1}, an answer")
        ending = "|".join(re.escape(str(token)) for token in self._tokenizer.added_tokens_decoder.values())
        if ending and (closing := re.compile(rf"\s*(?:{ending})\s*").match(whole, end)):
            end = closing.end()
        return min(start, len(before)) if before and whole.startswith(before) else start, end

    def _rendered(self, chat: Chat, messages: list[dict[str, Any]], add_generation_prompt: bool = False) -> str:
        return self._applied(messages, tools=chat.tools, tokenize=False, add_generation_prompt=add_generation_prompt)

    def _applied(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        """What the chat template makes of messages.

        OpenAI's API has the arguments of a call as JSON in a text. Nearly all templates write arguments as JSON
        themselves, and would quote that text; DeepSeek's alone put it together with others.
        """
        try:
            return self._tokenizer.apply_chat_template(_with_arguments(messages, _object_of), **options)
        except TypeError:
            return self._tokenizer.apply_chat_template(_with_arguments(messages, _json_of), **options)


def shared_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How far two sequences are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


def _with_arguments(messages: list[dict[str, Any]], form: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """The same messages, with the arguments of calls of functions in another form."""
    return [
        {**message, "tool_calls": [_called(call, form) for call in message["tool_calls"]]}
        if isinstance(message.get("tool_calls"), list)
        else message
        for message in messages
    ]


def _called(call: Any, form: Callable[[Any], Any]) -> Any:
    if not isinstance(call, dict):
        return call
    function = {"function": _called(call["function"], form)} if "function" in call else {}
    return {**call, **function, **({"arguments": form(call["arguments"])} if "arguments" in call else {})}


def _object_of(arguments: Any) -> Any:
    try:
        found = json.loads(arguments)
    except (TypeError, ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


def _json_of(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments


def texts_of(record: str | tuple[str, str] | Chat | Composed) -> list[str]:
    """All text of a record, for training a tokenizer."""
    if isinstance(record, str):
        return [record]
    if isinstance(record, Chat):
        return [message.get("content") or "" for message in record.messages]
    if isinstance(record, Composed):
        return record.texts
    return list(record)

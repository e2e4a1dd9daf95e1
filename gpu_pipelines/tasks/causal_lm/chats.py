"""Chats that a language model is asked to answer: in requests, in tables, and as drift is measured on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from gpu_pipelines.data.sources.row_streams import Problem
from gpu_pipelines.data.text.sources import chat_in
from gpu_pipelines.serving.request_body import WrongRequest, kind_of, require_keys
from gpu_pipelines.tasks.batch_encoding import BatchEncoder
from gpu_pipelines.tasks.formats import TOOLS
from gpu_pipelines.tasks.text_encoding import CannotEncodeError, Chat

_Tokens = TypeVar("_Tokens")
#: The fields of an instance that hold messages.
MESSAGES, PROMPT = "messages", "prompt"
_FORM = '{"messages": [{"role": "user", "content": "…"}]}'
_SCHEMA = {"type": "array", "items": {"type": "object"}, "minItems": 1}
#: The schema of an instance, in the terms of JSON Schema.
INSTANCE = {
    "type": "object",
    "properties": {PROMPT: {"anyOf": [{"type": "string"}, _SCHEMA]}, MESSAGES: _SCHEMA, TOOLS: _SCHEMA},
    "anyOf": [{"required": [PROMPT]}, {"required": [MESSAGES]}],
    "additionalProperties": False,
}


def chat_of(instance: Any) -> Chat | None:
    """The conversation of an instance; None of one with a text.

    Raises:
        WrongRequest: its messages are none.
    """
    if not isinstance(instance, dict):
        return None
    field = MESSAGES if MESSAGES in instance else PROMPT
    given = instance.get(field)
    if field == PROMPT and not isinstance(given, list):
        return None
    require_keys(instance, (field, TOOLS), "It", f" Send {_FORM}.")
    if not isinstance(given, list) or not given:
        told = "is empty" if given == [] else f"is {kind_of(given)}, not a list"
        raise WrongRequest(f"{field} {told}. Send {_FORM}.")
    found = chat_in([given], instance.get(TOOLS))
    if isinstance(found, Problem):
        raise WrongRequest(f"{found.reason}: {found.detail}. Send {_FORM}.")
    return found


def asked(encoder: BatchEncoder, chat: Chat) -> np.ndarray:
    """The tokens of a conversation up to where the next answer begins. Answers at its end are what is asked for.

    Raises:
        WrongRequest: it holds nothing but answers, or the chat template refuses it.
    """
    messages = list(chat.messages)
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise WrongRequest(f"messages has nothing but answers of the assistant. Send {_FORM}.")
    return _encoded(lambda: encoder.conversation(Chat(messages, chat.tools), asks=True))


def before_learned(encoder: BatchEncoder, chat: Chat, longest: int) -> np.ndarray:
    """What a profile has of a conversation that was trained on: its tokens before the first that is learned.

    Raises:
        WrongRequest: the training would have rejected it.
    """
    encoded = _encoded(lambda: encoder.chat(chat))
    if len(encoded.tokens) > longest:
        raise WrongRequest(f"messages has {len(encoded.tokens):,} tokens; the model takes {longest:,} in all.")
    learned = np.flatnonzero(encoded.targets[1:]) + 1
    if not len(learned):
        raise WrongRequest("messages has no answer of the assistant.")
    return encoded.tokens[: learned[0]]


def ends_of_answers(encoder: BatchEncoder) -> set[int]:
    """The token that a tokenizer's chat template ends an answer with; none without a template or such a token."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    if not encoder.has_chat_template:
        return set()
    try:
        encoded = encoder.chat(Chat(messages))
    except CannotEncodeError:
        return set()
    learned, special = encoded.tokens[encoded.targets != 0].tolist(), encoder.special_tokens
    return set([token for token in learned if token in special][-1:])


def characters_of(chat: Chat) -> int:
    """How long a conversation is as JSON: a template may show anything in it, such as the tools."""
    return len(json.dumps([chat.messages, chat.tools], ensure_ascii=False, default=str))


def _encoded(encode: Callable[[], _Tokens]) -> _Tokens:
    try:
        return encode()
    except CannotEncodeError as error:
        raise WrongRequest(f"messages cannot be rendered: {error}.") from None

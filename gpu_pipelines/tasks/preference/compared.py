"""A row of preferences as it is read: a prompt, and the completions that were compared or judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.data.class_names import encoding_problem
from gpu_pipelines.data.sources.row_streams import Problem
from gpu_pipelines.data.text.sources import (
    MALFORMED_MESSAGES,
    SYSTEM_BESIDE_TEXT,
    is_answer,
    message_of,
    messages_in,
    said_by,
    tools_of,
    with_system,
)
from gpu_pipelines.numbers import whole
from gpu_pipelines.tasks.formats import SYSTEM, TOOLS
from gpu_pipelines.tasks.text_encoding import Chat, Composed, shared_length, texts_of

#: A text, or messages.
Part = str | list[dict[str, Any]]
GOOD, BAD = "good", "bad"
_GOOD, _BAD = ("1", "true", "yes", GOOD), ("0", "false", "no", BAD)


@dataclass(frozen=True)
class Compared(Composed):
    """A prompt with the chosen completion and the rejected one, or with one completion.

    Attributes:
        prompt: what all completions follow.
        completions: of the same kind as the prompt, texts or messages.
        tools: JSON schemas of the functions that the assistant may call; None for none.
    """

    prompt: Part
    completions: tuple[Part, ...]
    tools: list[Any] | None = None

    @property
    def texts(self) -> list[str]:
        return [text for part in (self.prompt, *self.completions) for text in _texts(part)]

    @property
    def has_messages(self) -> bool:
        return not isinstance(self.prompt, str)

    @property
    def content(self) -> list[Any]:
        return [self.prompt, *self.completions, *([self.tools] if self.tools else [])]


def compared(row: Mapping[str, Any], completions: Sequence[str]) -> Compared | Problem:
    """The prompt and the completions of a row, or why it has none.

    Args:
        row: values by column; without a `prompt`, or with a text where completions are messages, the prompt is what
            the completions begin with.
        completions: names of their columns.
    """
    parts = [_part(row.get(name), name) for name in completions]
    prompt = _part(row["prompt"], "prompt") if row.get("prompt") is not None else None
    for part in (prompt, *parts):
        if isinstance(part, Problem):
            return part
    kinds = {type(part) for part in parts}
    if len(kinds) > 1 or (isinstance(prompt, list) and str in kinds):
        return Problem("texts beside messages", "all parts of a row must be texts, or all of them messages")
    if prompt is None or type(prompt) not in kinds:
        if len(parts) < 2:
            return Problem("no prompt", "'prompt' is empty, or a text beside messages")
        prompt, *parts = _with_prompt_taken_out(parts)
        if not prompt:
            # A table whose prompts have another name would be learned without them.
            told = f"there is no text in 'prompt', and {completions[0]!r} and {completions[1]!r} begin differently"
            return Problem("no prompt", told)
    if said_by(system := row.get(SYSTEM)) and isinstance(prompt, str):
        return SYSTEM_BESIDE_TEXT
    if isinstance(prompt, list):
        prompt = with_system(prompt, system)
    tools = tools_of(row.get(TOOLS))
    if isinstance(tools, Problem):
        return tools
    found = Compared(prompt, tuple(parts), tools)  # type: ignore[arg-type]
    return _problem(found, completions) or found


def judgement(value: Any) -> str | Problem:
    """Whether a completion is good or bad, of a cell with a truth value, 1 or 0, or a word."""
    said = str(whole(value)).strip().lower().removesuffix(".0")
    if said in _GOOD:
        return GOOD
    if said in _BAD:
        return BAD
    return Problem("no judgement", f"label is {str(value)[:60]!r}, and neither true nor false")


def _part(value: Any, name: str) -> Part | Problem:
    value = messages_in(value)
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        return Problem("no text", f"{name!r} is empty, or neither a text nor messages")
    messages = [message for message in map(message_of, value) if message is not None]
    return messages if len(messages) == len(value) else MALFORMED_MESSAGES


def _with_prompt_taken_out(parts: Sequence[Any]) -> list[Any]:
    """What both completions begin with, and what is left of each; TRL's `extract_prompt` cuts at the same place."""
    chosen, rejected = parts
    # Something has to be left of both.
    place = min(shared_length(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
    if place > 0 and chosen[place - 1] == " ":
        place -= 1
    return [chosen[:place], chosen[place:], rejected[place:]]


def _problem(found: Compared, names: Sequence[str]) -> Problem | None:
    for name, part in zip(names, found.completions, strict=True):
        if not (part.strip() if isinstance(part, str) else any(map(is_answer, part))):
            return Problem("no answer", f"{name!r} has no text, or no message of the assistant")
    if len(found.completions) > 1 and found.completions[0] == found.completions[1]:
        return Problem("nothing to choose", "the chosen completion and the rejected one are the same")
    return encoding_problem(found.texts)


def _texts(part: Part) -> list[str]:
    return [part] if isinstance(part, str) else texts_of(Chat(part))

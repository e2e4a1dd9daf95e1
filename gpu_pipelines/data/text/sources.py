"""Where texts come from: a table, or a file of documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from gpu_pipelines.data.cells import written
from gpu_pipelines.data.class_names import LabelOf, class_of_row, encoding_problem
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.rows import beside, rows_of
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.formats import BESIDE, BESIDE_CHATS, INPUT, INSTRUCTED, SYSTEM, TOOLS
from gpu_pipelines.tasks.text_encoding import Chat, Composed

#: A text, a (prompt, completion) or another pair, a conversation, or what a task makes of several.
Text = str | tuple[str, str] | Chat | Composed
#: Who speaks, as datasets of the form of ShareGPT call it, and as chat templates do.
_ROLES = {"human": "user", "gpt": "assistant"}
#: Columns that hold chats, by whoever made them.
CHATS = ("messages", "conversations")
#: Lists and objects within each other in a message or a tool. A template goes through them by functions that call
#: themselves, and how deep Python lets it depends on what else is loaded.
_MOST_LEVELS = 100
_MAY_BE_MESSAGES = re.compile(r"\s*\[\s*\{")
#: What is wrong with a list of messages of which one is none.
MALFORMED_MESSAGES = Problem(
    "malformed messages",
    "each must have a role and a content, both text, or parts of type text; an answer may have tool_calls in place of "
    "the content, and a weight of 0 or 1; nothing may be nested too deeply",
)

#: Why a row of texts cannot be used that has a system's message beside it.
SYSTEM_BESIDE_TEXT = Problem(
    "system beside a text",
    "there is no place for the column 'system' in a text: give the prompt as messages, or leave the column out",
)


@dataclass(frozen=True)
class TextRecord:
    """One text of the source.

    Attributes:
        source: where it is, for people.
        text: the text.
        label: class name, where the task has classes.
        problem: why the record is unusable, or None.
        slice_value: its value of the column `slice_by`.
        group: its value of the column `group_by`.
    """

    source: str
    text: Text
    label: str = ""
    problem: Problem | None = None
    slice_value: str = ""
    group: str = ""

    @property
    def content(self) -> bytes:
        """What decides its split: equal content is equal bytes, whatever the label."""
        if isinstance(self.text, str):
            return self.text.encode("utf-8")
        held: Any = self.text
        if isinstance(held, Chat):
            plain = not (held.tools or held.given)
            held = held.messages if plain else [held.messages, held.tools, held.given]
        elif isinstance(held, Composed):
            held = held.content
        return json.dumps(held, sort_keys=True).encode("utf-8")


def labelled_texts(
    source: SourceFiles, settings: PrepareSettings, meter: Meter, label_of: LabelOf = class_of_row
) -> Iterator[TextRecord]:
    """The records of a table with a text, or a pair, and a label in each row, in order, with what is wrong with each.

    Args:
        source: the files.
        settings: the names of the columns are read.
        meter: is told how much has been read.
        label_of: what is learned of a row, as text, or why it says nothing.

    Raises:
        UserError: a file cannot be read or lacks a column.
    """
    columns, more = list(source.columns or settings.column_choices()[0]), settings.columns_beside
    for _, (where, row) in rows_of(source, columns, meter):
        record = _labelled(where, row, settings, label_of)
        yield replace(record, **beside(row, settings)) if more else record


def plain_texts(
    source: SourceFiles, settings: PrepareSettings, meter: Meter, columns: tuple[str, ...]
) -> Iterator[TextRecord]:
    """The records of a source without classes, in order, each with what is wrong with it.

    Args:
        source: the files.
        settings: the names of the columns are read.
        meter: is told how much has been read.
        columns: those with the text.

    Raises:
        UserError: a file cannot be read or lacks a column, or a text has none to group by.
    """
    if source.format == "text" and settings.group_by:
        raise UserError(f"group_by is {settings.group_by!r}, but a file of text has no columns.", "Give a table.")
    are_chats = columns[0] in CHATS and columns[0] != settings.text_column
    texts = _of_text(columns)
    are_instructions = texts == INSTRUCTED
    # One file may have them where another has none.
    others = BESIDE.get(texts, BESIDE_CHATS) if texts != (settings.text_column,) else ()
    more = settings.columns_beside
    read = list(dict.fromkeys((*texts, *more)))
    held = CHATS[:1] if are_instructions else texts
    for _, (where, row) in rows_of(source, read, meter, others):
        row = _with_conversation(row) if are_instructions else _with_messages(row, texts, are_chats)
        record = text_record(where, row, (*held, *others))
        yield replace(record, **beside(row, settings)) if more else record


def _labelled(
    where: str,
    row: dict[str, Any] | Problem,
    settings: PrepareSettings,
    label_of: LabelOf,
) -> TextRecord:
    if isinstance(row, Problem):
        return TextRecord(where, "", problem=row)
    texts: list[Any] = []
    for column in settings.classified_columns:
        if isinstance(value := row.get(column), list):
            return _unusable(where, "no text", _nested(column, value))
        record = text_record(where, row, (column,))
        if record.problem:
            return record
        texts.append(record.text)
    named = label_of(row, settings)
    if isinstance(named, Problem):
        return TextRecord(where, "", problem=named)
    if problem := encoding_problem([named]):
        return TextRecord(where, "", problem=problem)
    return TextRecord(where, tuple(texts) if len(texts) > 1 else texts[0], named)


def text_record(where: str, row: dict[str, Any] | Problem, columns: tuple[str, ...]) -> TextRecord:
    """The text, the prompt and completion, or the conversation in some columns of a row, or why there is none."""
    if isinstance(row, Problem):
        return TextRecord(where, "", problem=row)
    named = _of_text(columns)
    values = [row.get(column) for column in named]
    tools, system = (row.get(name) if name in columns[1:] else None for name in (TOOLS, SYSTEM))
    if len(parts := [value for value in values if isinstance(value, list)]) == len(values):
        return _chat(where, parts, tools, system)
    if said_by(system):
        return TextRecord(where, "", problem=SYSTEM_BESIDE_TEXT)
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values) or not texts[-1].strip():
        column, value = next(
            (pair for pair in zip(named, values, strict=True) if not isinstance(pair[1], str)),
            (named[-1], values[-1]),
        )
        nested = isinstance(value, (dict, list))
        return _unusable(where, "no text", _nested(column, value) if nested else f"{column!r} is empty or no text")
    if problem := encoding_problem(texts):
        return TextRecord(where, "", problem=problem)
    return TextRecord(where, texts[0] if len(texts) == 1 else (texts[0], texts[1]))


def _chat(source: str, parts: list[list[Any]], tools: Any, system: Any) -> TextRecord:
    """A conversation to learn from."""
    chat = chat_in(parts, tools, system)
    if isinstance(chat, Problem):
        return TextRecord(source, "", problem=chat)
    if not any(is_answer(chat.messages[place]) for place in chat.learned):
        roles = ", ".join(dict.fromkeys(str(message["role"]) for message in chat.messages))
        none = "no message of the assistant, or none but with weight 0"
        return _unusable(source, "no answer", f"{none}; the roles are {roles[:80]}")
    return TextRecord(source, chat)


def chat_in(parts: Sequence[list[Any]], tools: Any = None, system: Any = None) -> Chat | Problem:
    """A conversation, or what is wrong with it.

    Args:
        parts: lists of messages: the whole, or a prompt and what follows it.
        tools: a cell as `tools_of` takes it.
        system: what the system's message says, where there is none.
    """
    messages = [message_of(message) for part in parts for message in part]
    if None in messages:
        return MALFORMED_MESSAGES
    schemas = tools_of(tools)
    if isinstance(schemas, Problem):
        return schemas
    held = [message for message in messages if message is not None]
    told = with_system(held, system)
    if problem := encoding_problem([message.get("content") or "" for message in told]):
        return problem
    return Chat(told, schemas, len(parts[0]) + len(told) - len(held) if len(parts) > 1 else 0)


def with_system(messages: list[dict[str, Any]], system: Any) -> list[dict[str, Any]]:
    """Messages that begin with that of the system, which a cell may hold: what they have themselves counts more."""
    if not said_by(system) or (messages and messages[0]["role"] == SYSTEM):
        return messages
    return [{"role": SYSTEM, "content": system}, *messages]


def said_by(system: Any) -> bool:
    """Whether a cell holds what a system's message says."""
    return isinstance(system, str) and bool(system.strip())


def _with_messages(
    row: dict[str, Any] | Problem, columns: tuple[str, ...], are_chats: bool
) -> dict[str, Any] | Problem:
    """A row whose messages are lists, where they were JSON; of columns of chats, a text that is none is a problem."""
    if isinstance(row, Problem):
        return row
    found = {name: messages_in(row.get(name)) for name in _of_text(columns)}
    if are_chats and any(isinstance(value, str) and value.strip() for value in found.values()):
        return MALFORMED_MESSAGES
    return {**row, **found}


def _with_conversation(row: dict[str, Any] | Problem) -> dict[str, Any] | Problem:
    """A row of Alpaca's columns with the conversation that it is."""
    if isinstance(row, Problem):
        return row
    found = instructed(row)
    return found if isinstance(found, Problem) else {**row, CHATS[0]: found}


def instructed(row: Mapping[str, Any]) -> list[dict[str, Any]] | Problem:
    """The messages of a row with an instruction, or what is wrong with it: the user's, and the answer if it has one.

    Args:
        row: values by column; what is asked about, in `input`, follows the instruction on a line of its own.
    """
    instruction, output = INSTRUCTED
    held = {name: "" if row.get(name) is None else row[name] for name in (instruction, INPUT, output)}
    if wrong := [name for name, value in held.items() if not isinstance(value, str)]:
        return Problem("no text", f"{wrong[0]!r} is no text")
    *asked, answer = (value if value.strip() else "" for value in held.values())
    if not any(asked):
        return Problem("no text", f"{instruction!r} is empty")
    messages = [{"role": "user", "content": "\n".join(filter(None, asked))}]
    return [*messages, {"role": "assistant", "content": answer}] if answer else messages


def _of_text(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The columns of texts or messages, without those that stand beside them."""
    return (columns[0], *(column for column in columns[1:] if column not in (INPUT, *BESIDE_CHATS)))


def messages_in(value: Any) -> Any:
    """The messages of a cell with a list of them as text, which is how CSV holds them; else the value as it is."""
    if not isinstance(value, str) or not _MAY_BE_MESSAGES.match(value):
        return value
    found = written(value)
    are = isinstance(found, list) and all(
        isinstance(each, dict) and ("role" in each or {"from", "value"} <= each.keys()) for each in found
    )
    return found if are else value


def tools_of(tools: Any) -> list[Any] | Problem | None:
    """The functions that an assistant may call, of a cell with a list or its text; None for none, or what is wrong."""
    schemas = written(tools) if isinstance(tools, str) and tools.strip() else tools or None
    if schemas is None or (isinstance(schemas, list) and all(isinstance(each, dict) for each in schemas)):
        with suppress(RecursionError):
            return _without_nothing(schemas)
    return Problem(
        "malformed tools", "tools must be a list of JSON schemas that are not nested too deeply, or such a list as JSON"
    )


def message_of(given: Any) -> dict[str, Any] | None:
    """A message as chat templates have it; None for what is none."""
    if not isinstance(given, dict):
        return None
    # A table of messages gives each the keys of all; a template would take an empty tool call for one.
    try:
        message = _without_nothing(given)
    except RecursionError:
        return None
    if {"from", "value"} <= message.keys() and "role" not in message:
        weight = {name: value for name, value in message.items() if name == "weight"}
        message = {"role": _ROLES.get(message["from"], message["from"]), "content": message["value"], **weight}
    may_lack = message.get("role") == "assistant" and isinstance(message.get("tool_calls"), list)
    if isinstance(content := message.get("content", "" if may_lack else None), list):
        message["content"] = content = _joined(content)
    are_texts = isinstance(message.get("role"), str) and isinstance(content, str)
    return message if are_texts and message.get("weight", 1) in (0, 1) else None


def _joined(parts: list[Any]) -> str | None:
    """The content of a message of several parts, as vLLM gives it to templates of texts; None where one is no text."""
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    held = [text for text in texts if isinstance(text, str)]
    return "\n".join(held) if parts and len(held) == len(parts) else None


def is_answer(message: dict[str, Any]) -> bool:
    """Whether a message is one of the assistant's with something in it."""
    return message["role"] == "assistant" and bool(message.get("content", "").strip() or message.get("tool_calls"))


def _without_nothing(value: Any, levels: int = _MOST_LEVELS) -> Any:
    """The same without the keys of objects that have no value.

    Raises:
        RecursionError: lists and objects are nested in more levels.
    """
    if not levels:
        raise RecursionError
    if isinstance(value, dict):
        return {key: _without_nothing(each, levels - 1) for key, each in value.items() if each is not None}
    return [_without_nothing(each, levels - 1) for each in value] if isinstance(value, list) else value


def _nested(column: str, value: Any) -> str:
    return f"{column!r} holds a nested value ({type(value).__name__}), and a column of texts is needed"


def _unusable(source: str, reason: str, detail: str = "") -> TextRecord:
    return TextRecord(source, "", problem=Problem(reason, detail))

"""Where texts come from: a table, a file of documents, or a sample data set."""

from __future__ import annotations

import ast
import json
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_pipelines.data.class_names import class_in, encoding_problem
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.files import Source
from gpu_pipelines.data.sources.names import SAMPLE
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.rows import rows_of, slice_value, source_columns
from gpu_pipelines.data.sources.source_files import find_source
from gpu_pipelines.data.task_columns import columns_looked_for, columns_of_task

# Packages of the standard library, on every Python from 3.10 to 3.13, whose docstrings tell them apart.
DOCSTRING_PACKAGES = ("asyncio", "email", "importlib", "logging", "multiprocessing", "tkinter", "unittest", "xml")
SHORTEST_DOCSTRING = 40
# Characters after which a topic of the manual is continued in another document: a few dozen topics make no good split.
LONGEST_SECTION = 2000


#: A text, a (prompt, completion), or the messages of a chat, each with `role` and `content`.
Text = str | tuple[str, str] | list[dict[str, Any]]


@dataclass(frozen=True)
class TextRecord:
    """One text of the source.

    Attributes:
        source: where it is, for people.
        text: the text.
        label: class name, where the task has classes.
        problem: why the record is unusable, or None.
        slice_value: its value of the column `slice_by`.
    """

    source: str
    text: Text
    label: str = ""
    problem: Problem | None = None
    slice_value: str = ""

    @property
    def content(self) -> bytes:
        """What decides its split: equal content is equal bytes, whatever the label."""
        text = self.text if isinstance(self.text, str) else json.dumps(self.text, sort_keys=True)
        return text.encode("utf-8")


def text_source(settings: PrepareSettings, scratch: Path) -> Source:
    """Finds the files of a source.

    Args:
        settings: `source`, `source_format` and `task` are read.
        scratch: a directory to be made; a sample data set is written there and read back like any other.

    Raises:
        UserError: the source does not exist, or is in a format that the task does not read.
    """
    if not settings.source.startswith(SAMPLE):
        return find_source(settings)
    scratch.mkdir(parents=True)
    path = scratch / f"{settings.source.removeprefix('sample:')}.jsonl"
    write_sample(path)
    return find_source(replace(settings, source=str(path), source_format="jsonl"))


def text_records(
    source: Source, settings: PrepareSettings, meter: Meter, columns: tuple[str, ...]
) -> Iterator[TextRecord]:
    """The records of a source in order, each with what is wrong with it.

    Args:
        source: the files.
        settings: `task` and the column names are read.
        meter: is told how much has been read.
        columns: of a language model, those with the text, by `text_columns`.

    Raises:
        UserError: a file cannot be read or lacks a column.
    """
    if settings.task == "text_classification":
        text, label = settings.text_column, settings.label_column
        remedy = "Name the columns with -p text_column=… and -p label_column=…."
        wanted = list(dict.fromkeys(column for column in (text, label, settings.slice_by) if column))
        for _, (where, row) in rows_of(source, wanted, remedy, meter):
            record = _labelled(where, row, settings)
            yield replace(record, slice_value=slice_value(row, settings.slice_by)) if settings.slice_by else record
    else:
        remedy = "Name the column of texts with -p text_column=…."
        for _, (where, row) in rows_of(source, list(columns), remedy, meter):
            yield _record(where, row, columns)


def text_columns(source: Source, settings: PrepareSettings) -> tuple[str, ...]:
    """The columns with the text of a language model: the one that was named, or those of prompts or chats.

    Raises:
        UserError: the first file has none of them.
    """
    if source.format == "text":
        return ("text",)
    return columns_of_task(settings, source_columns(source, columns_looked_for(settings)))


def write_sample(path: Path) -> None:
    """Writes docstrings of the standard library, or Python's own reference manual, which both ship with Python.

    Args:
        path: `docstrings.jsonl` (text and the package as label) or `documentation.jsonl` (text).
    """
    rows = _docstrings() if path.stem == "docstrings" else _documentation()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _docstrings() -> list[dict[str, str]]:
    rows = []
    library = Path(sysconfig.get_path("stdlib"))
    for package in DOCSTRING_PACKAGES:
        for path in sorted((library / package).rglob("*.py")):
            if {"test", "tests"} & set(path.relative_to(library).parts):
                continue
            # Parsed, not imported: importing all of the standard library opens windows and browsers.
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    text = ast.get_docstring(node) or ""
                    if len(text) >= SHORTEST_DOCSTRING:
                        rows.append({"text": text, "label": package})
    return rows


def _documentation() -> list[dict[str, str]]:
    from pydoc_data.topics import topics

    rows = []
    for _, text in sorted(topics.items()):
        section = ""
        for paragraph in text.strip().split("\n\n"):
            if section and len(section) + len(paragraph) > LONGEST_SECTION:
                rows.append({"text": section})
                section = ""
            section += f"\n\n{paragraph}" if section else paragraph
        rows.append({"text": section})
    return rows


def _labelled(where: str, row: dict[str, Any] | Problem, settings: PrepareSettings) -> TextRecord:
    value = None if isinstance(row, Problem) else row.get(settings.text_column)
    if isinstance(value, list):
        return _unusable(where, "no text", _nested(settings.text_column, value))
    record = _record(where, row, (settings.text_column,))
    if record.problem or isinstance(row, Problem):
        return record
    named = class_in(row.get(settings.label_column), settings)
    if isinstance(named, Problem):
        return TextRecord(where, "", problem=named)
    if problem := encoding_problem([named]):
        return TextRecord(where, "", problem=problem)
    return replace(record, label=named)


def _record(where: str, row: dict[str, Any] | Problem, columns: tuple[str, ...]) -> TextRecord:
    if isinstance(row, Problem):
        return TextRecord(where, "", problem=row)
    values = [row.get(column) for column in columns]
    if len(values) == 1 and isinstance(values[0], list):
        return _chat(where, values[0])
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values) or not texts[-1].strip():
        column, value = next(
            (pair for pair in zip(columns, values, strict=True) if not isinstance(pair[1], str)),
            (columns[-1], values[-1]),
        )
        nested = isinstance(value, (dict, list))
        return _unusable(where, "no text", _nested(column, value) if nested else f"{column!r} is empty or no text")
    if problem := encoding_problem(texts):
        return TextRecord(where, "", problem=problem)
    return TextRecord(where, texts[0] if len(texts) == 1 else (texts[0], texts[1]))


def _chat(source: str, messages: list[Any]) -> TextRecord:
    for message in messages:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            return _unusable(source, "malformed messages", "each must have a role and a content, both text")
    if not any(message["role"] == "assistant" and message["content"].strip() for message in messages):
        return _unusable(source, "no answer", "no message of the assistant")
    if problem := encoding_problem([message["content"] for message in messages]):
        return TextRecord(source, "", problem=problem)
    # A table of messages gives each the keys of all; a template would take an empty tool call for one.
    return TextRecord(source, [{k: v for k, v in message.items() if v is not None} for message in messages])


def _nested(column: str, value: Any) -> str:
    return f"{column!r} holds a nested value ({type(value).__name__}), and a column of texts is needed"


def _unusable(source: str, reason: str, detail: str = "") -> TextRecord:
    return TextRecord(source, "", problem=Problem(reason, detail))

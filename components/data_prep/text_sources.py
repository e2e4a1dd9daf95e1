"""Where texts come from: a table, a file of documents, or a sample data set."""

from __future__ import annotations

import ast
import json
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.components.data_prep.tables import table_columns, table_rows
from gpu_pipelines.errors import UserError

# Packages of the standard library, on every Python from 3.10 to 3.13, whose docstrings tell them apart.
DOCSTRING_PACKAGES = ("asyncio", "email", "importlib", "logging", "multiprocessing", "tkinter", "unittest", "xml")
SHORTEST_DOCSTRING = 40
# Characters after which a topic of the manual is continued in another document: a few dozen topics make no good split.
LONGEST_SECTION = 2000


@dataclass(frozen=True)
class TextRecord:
    """One text of the source.

    Attributes:
        source: where it is, for people.
        text: the text, a (prompt, completion), or the messages of a chat, each with `role` and `content`.
        label: class name, where the task has classes.
        problem: why the record is unusable (reason, detail); the reason is empty if it is usable.
    """

    source: str
    text: str | tuple[str, str] | list[dict[str, Any]]
    label: str = ""
    problem: tuple[str, str] = ("", "")

    @property
    def content(self) -> bytes:
        """What decides its split: equal content is equal bytes, whatever the label."""
        text = self.text if isinstance(self.text, str) else json.dumps(self.text, sort_keys=True)
        return text.encode("utf-8")


def text_records(settings: PrepareSettings, scratch: Path) -> list[TextRecord]:
    """Lists the records of a source, each with what is wrong with it.

    Args:
        settings: `source`, `task` and the column names are read.
        scratch: an empty directory; a sample data set is written there and read back like any other.

    Raises:
        UserError: the source does not exist, is empty, or does not have the columns.
    """
    if problems := settings.problems_here():
        raise UserError.of_all(problems)
    path = Path(settings.source).expanduser()
    if settings.source.startswith("sample:"):
        path = scratch / f"{settings.source.removeprefix('sample:')}.jsonl"
        write_sample(path)
    if path.suffix.lower() == ".txt":
        records = _documents(path)
    elif settings.task == "text_classification":
        records = _labelled(path, settings)
    else:
        records = _unlabelled(path, settings)
    if not records:
        raise UserError(f"The source {settings.source} holds no texts.")
    return records


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


def _documents(path: Path) -> list[TextRecord]:
    """The documents of a text file; one or more blank lines stand between two of them."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"The file {path} cannot be read: {error.strerror or error}.") from None
    records, line = [], 1
    for number, piece in enumerate(re.split(rb"(\r?\n(?:[ \t]*\r?\n)+)", content)):
        if number % 2 == 0 and piece.strip():
            try:
                text = piece.decode("utf-8-sig" if number == 0 else "utf-8").strip("\r\n")
                records.append(TextRecord(f"{path.name}:{line}", text))
            except UnicodeDecodeError as error:
                records.append(TextRecord(f"{path.name}:{line}", "", problem=("not UTF-8", str(error))))
        line += piece.count(b"\n")
    return records


def _labelled(path: Path, settings: PrepareSettings) -> list[TextRecord]:
    text, label = settings.text_column, settings.label_column
    records = []
    remedy = "Name the columns with -p text_column=… and -p label_column=…."
    for where, row in table_rows(path, [text, label], remedy):
        record = _record(f"{path.name}:{where}", row, (text,))
        if not record.problem[0] and not isinstance(row, str):
            name = row.get(label)
            named = "" if name is None or name != name else str(name).strip()
            if isinstance(name, (list, dict)):
                record = _unusable(record.source, "malformed row", f"{label!r} holds a {type(name).__name__}")
            elif not isinstance(record.text, str):
                record = _unusable(record.source, "no text", f"{text!r} holds no text")
            elif not named:
                record = _unusable(record.source, "no label", "")
            else:
                record = TextRecord(record.source, record.text, named)
        records.append(record)
    return records


def _unlabelled(path: Path, settings: PrepareSettings) -> list[TextRecord]:
    has = table_columns(path)
    wanted = next(
        (c for c in ((settings.text_column,), ("prompt", "completion"), ("messages",)) if set(c) <= set(has)), None
    )
    if wanted is None:
        raise UserError(
            f"The table {path} has no column {settings.text_column!r}, no columns 'prompt' and 'completion', and no "
            f"column 'messages'; it has {', '.join(has) or 'none at all'}.",
            "Name the column of texts with -p text_column=….",
        )
    return [_record(f"{path.name}:{where}", row, wanted) for where, row in table_rows(path, list(wanted), "")]


def _record(source: str, row: dict[str, Any] | str, columns: tuple[str, ...]) -> TextRecord:
    if isinstance(row, str):
        return _unusable(source, "malformed row", row)
    values = [row.get(column) for column in columns]
    if len(values) == 1 and isinstance(values[0], list):
        return _chat(source, values[0])
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values) or not texts[-1].strip():
        return _unusable(source, "no text", f"{columns[-1]!r} is empty or no text")
    if problem := _encoding_problem(texts):
        return _unusable(source, "not Unicode", problem)
    return TextRecord(source, texts[0] if len(texts) == 1 else (texts[0], texts[1]))


def _chat(source: str, messages: list[Any]) -> TextRecord:
    for message in messages:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            return _unusable(source, "malformed messages", "each must have a role and a content, both text")
    if not any(message["role"] == "assistant" and message["content"].strip() for message in messages):
        return _unusable(source, "no answer", "no message of the assistant")
    if problem := _encoding_problem([message["content"] for message in messages]):
        return _unusable(source, "not Unicode", problem)
    # A table of messages gives each the keys of all; a template would take an empty tool call for one.
    return TextRecord(source, [{k: v for k, v in message.items() if v is not None} for message in messages])


def _encoding_problem(texts: list[str]) -> str:
    try:
        "".join(texts).encode("utf-8")
    except UnicodeEncodeError as error:
        return str(error)
    return ""


def _unusable(source: str, reason: str, detail: str) -> TextRecord:
    return TextRecord(source, "", problem=(reason, detail))

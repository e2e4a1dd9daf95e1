"""The rows of a source to predict, in pieces: each with its key and the model's input.

The ends of the pieces depend only on the source and the parameters, whoever predicts them.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from gpu_pipelines.data.class_names import encoding_problem
from gpu_pipelines.data.images.named_images import NamedImages
from gpu_pipelines.data.sources.files import LARGEST_IMAGE, SourceFile
from gpu_pipelines.data.sources.listing import shown_path
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.rows import rows_of, source_columns
from gpu_pipelines.data.sources.sources import open_source
from gpu_pipelines.data.text.sources import (
    MALFORMED_MESSAGES,
    SYSTEM_BESIDE_TEXT,
    chat_in,
    instructed,
    messages_in,
    said_by,
)
from gpu_pipelines.data.units.parallel import batches
from gpu_pipelines.errors import UserError
from gpu_pipelines.numbers import whole
from gpu_pipelines.prediction.settings import RowsToPredict
from gpu_pipelines.serving.predictor import IMAGES, NUMBERS, Inputs
from gpu_pipelines.tasks.formats import BESIDE, BESIDE_CHATS, FORMATS, INPUT, INSTRUCTED, SYSTEM, TOOLS

#: Most rows of a piece, and most bytes of their content.
MOST_ROWS, MOST_BYTES = 1024, 64 << 20
#: Bytes that a row counts besides its content.
_ROW = 200
#: A column of images in base64, as the server reads them.
_BASE64 = "b64"
NO_KEY, NO_TEXT, NO_IMAGE, NO_NUMBERS = "no key", "no text", "no image", "no numbers"
NOT_READ = "file cannot be read"


class InputRow(NamedTuple):
    """A row of the source.

    Attributes:
        key: identifies its prediction: the value of the key column, or else its place in the source.
        place: where it is, for people.
        value: the model's input: a text, a pair of texts, the bytes of an image or its file, or numbers by column; or
            the `Problem` because of which there is none.
        instance: the same in the form that is written beside the prediction; None for the bytes of an image.
    """

    key: Any
    place: str
    value: Any
    instance: Any = None


def read_value(value: Any) -> Any:
    """The value of a row, read from its file if it is in one; or the `Problem` with that."""
    if not isinstance(value, SourceFile):
        return value
    try:
        return value.read()
    except (OSError, ValueError) as error:
        return Problem(NOT_READ, getattr(error, "strerror", None) or str(error))


class Piece(NamedTuple):
    """Consecutive rows, predicted by one worker; pieces are numbered from 0."""

    number: int
    rows: list[InputRow]


class RowSource:
    """A source and its files.

    Args:
        settings: how to read it.
        inputs: what the model takes.
        key_column: the column with the keys; empty for none.
        scratch: an empty directory.

    Attributes:
        columns: for a table, the columns to read.

    Raises:
        UserError: there is no such source, it is in a format that the task does not read, or it lacks a column.
    """

    def __init__(self, settings: RowsToPredict, inputs: Inputs, key_column: str, scratch: Path) -> None:
        self._inputs, self._key_column = inputs, key_column
        self._settings = replace(settings, choices=choices_of(settings, inputs, key_column))
        self.files = open_source(self._settings, scratch)
        self.columns = self._found_columns()
        self._images = NamedImages.of(self.files, settings.image_root) if inputs.kind == IMAGES else None

    def _found_columns(self) -> tuple[str, ...]:
        if self.files.service:
            return self._settings.columns_of(self.files.columns)
        if self._key_column and not FORMATS[self.files.format].is_table:
            raise UserError(
                f"key_column is {self._key_column!r}, but {self._settings.source} is {self.files.format}, which has no "
                "columns.",
                "Leave it out; the keys are then the places of the rows in the source.",
            )
        if self.files.format == "images":
            return ()
        if self.files.format == "tar":
            return (self._settings.image_column, "")
        choices = self._settings.column_choices()
        has = source_columns(self.files, choices) if len(self.files) else []
        # Problems of rows that have no columns at all are reported row by row.
        return self._settings.columns_of(has) if has else choices[0]

    def pieces(self, meter: Meter, most_rows: int = MOST_ROWS) -> Iterator[Piece]:
        """All rows in the order of the source, read on demand.

        Args:
            meter: gets how much has been read.
            most_rows: most rows of a piece.

        Raises:
            UserError: a file cannot be read, or lacks a column.
        """
        for number, rows in enumerate(batches(self._rows(meter), most_rows, MOST_BYTES, _weight)):
            yield Piece(number, rows)

    @property
    def _are_instructions(self) -> bool:
        return bool(self._inputs.chats) and self.columns[:2] == INSTRUCTED

    def _rows(self, meter: Meter) -> Iterator[InputRow]:
        if self.files.format == "images":
            for file in self.files:
                yield InputRow(file.name, file.name, file, {"image": file.name})
                meter.finish_file()
            return
        others = BESIDE[INSTRUCTED] if self._are_instructions else BESIDE_CHATS if self._inputs.chats else ()
        needed = [name for name in self.columns if name not in others]
        for file, (where, row) in rows_of(self.files, needed, meter, others):
            yield self._row(file, where, row)

    def _row(self, file: SourceFile, where: str, row: dict[str, Any] | Problem) -> InputRow:
        if isinstance(row, Problem):
            return InputRow(where, where, row)
        key = where
        if self._key_column:
            key = _key(row.get(self._key_column))
            if key is None or (isinstance(key, str) and not key.strip()):  # an empty cell of CSV
                return InputRow(where, where, Problem(NO_KEY, f"the column {self._key_column!r} is empty"))
        if self._inputs.kind == IMAGES:
            value, instance = self._image(file, row)
        elif self._inputs.kind == NUMBERS:
            value, instance = self._numbers(row)
        else:
            value, instance = self._text(row)
        return InputRow(key, where, value, instance)

    def _image(self, file: SourceFile, row: Mapping[str, Any]) -> tuple[Any, Any]:
        column = self.columns[0]
        value = row.get(column)
        if isinstance(value, dict):  # Hugging Face's image feature: {"bytes": …, "path": …}
            value = value.get("bytes") or value.get("path")
        if isinstance(value, str) and column == _BASE64 != self._settings.image_column:
            try:
                value = base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError) as error:
                return Problem(NO_IMAGE, f"{column} is not base64: {error}"), None
        if isinstance(value, bytes):
            return (value if len(value) <= LARGEST_IMAGE else Problem(NO_IMAGE, "the image is too large")), None
        if isinstance(value, str) and value.strip():
            path = value.strip()
            assert self._images is not None
            try:
                return self._images.file(file, path), {"image": shown_path(path)}
            except OSError as error:
                return Problem(NOT_READ, f"{shown_path(path)}: {error}"), None
        return Problem(NO_IMAGE, f"the column {column!r} has no image"), None

    def _numbers(self, row: Mapping[str, Any]) -> tuple[Any, Any]:
        found = {name: row.get(name) for name in self._inputs.columns}
        values: Any = {name: float(each) if isinstance(each, Decimal) else each for name, each in found.items()}
        if self.columns[0] == self._inputs.field not in self._inputs.columns:
            values = row.get(self._inputs.field)
            try:
                values = json.loads(values) if isinstance(values, str) else values
            except (ValueError, RecursionError) as error:
                return Problem(NO_NUMBERS, f"the column {self._inputs.field!r} is not JSON: {error}"), None
            if not isinstance(values, dict):
                return Problem(NO_NUMBERS, f"the column {self._inputs.field!r} is no object of numbers by column"), None
        return values, {self._inputs.field: values}

    def _text(self, row: Mapping[str, Any]) -> tuple[Any, Any]:
        column = self.columns[0]
        text = row.get(column)
        if self._inputs.chats and (found := self._chat(row, column)) is not None:
            return found
        # As in training, which reads nothing but the named column.
        if self._inputs.chats and column != self._settings.text_column and said_by(row.get(SYSTEM)):
            return SYSTEM_BESIDE_TEXT, None
        if self._inputs.words and (isinstance(text, list) or column in self._inputs.words):
            return self._in_words(column, text)
        fields = (self._inputs.field, *filter(None, [self._inputs.pair]))
        texts = [_plain_text(row, name) for name in self.columns[: len(fields)]]
        if problem := next((each for each in texts if isinstance(each, Problem)), None):
            return problem, None
        return tuple(texts) if self._inputs.pair else texts[0], dict(zip(fields, texts, strict=True))

    def _chat(self, row: Mapping[str, Any], column: str) -> tuple[Any, Any] | None:
        """A conversation as an instance, from a list of messages or such a list as JSON; None for any other text."""
        given = instructed(row) if self._are_instructions else messages_in(row.get(column))
        if isinstance(given, Problem):
            return given, None
        if not isinstance(given, list) or not given:
            return (MALFORMED_MESSAGES, None) if given and column in self._inputs.chats else None
        chat = chat_in([given], row.get(TOOLS), row.get(SYSTEM))
        if isinstance(chat, Problem):
            return chat, None
        instance = {"messages": chat.messages, **({TOOLS: chat.tools} if chat.tools else {})}
        return instance, instance

    def _in_words(self, column: str, value: Any) -> tuple[Any, Any]:
        """A text as words, as training reads tables: a list, or words separated by blanks."""
        words = value.split() if isinstance(value, str) else value
        if not isinstance(words, list) or not words:
            return Problem(NO_TEXT, f"{column!r} is empty or no text"), None
        words = ["" if word is None else str(word) for word in words]
        if problem := encoding_problem(words):
            return problem, None
        return words, {self._inputs.field: words}


def choices_of(settings: RowsToPredict, inputs: Inputs, key_column: str) -> tuple[tuple[str, ...], ...]:
    """The columns to read from a table, the first choice that it has.

    Args:
        settings: the names of columns.
        inputs: what the model takes.
        key_column: the column with the keys; empty for none.
    """
    key = (key_column,) if key_column else ()
    named: list[tuple[str, ...]]
    if inputs.kind == IMAGES:
        named = [(settings.image_column,), (_BASE64,)]
    elif inputs.kind == NUMBERS:
        named = [inputs.columns, (inputs.field,)]
    elif inputs.pair:
        named = [(settings.text_column, settings.text_pair_column or inputs.pair)]
    elif inputs.chats:
        # As in training: a prompt beside messages, as in UltraChat, is only their beginning, without the template.
        chats = [(column,) for column in inputs.chats]
        asked = [(*INSTRUCTED, INPUT), INSTRUCTED]
        in_order = [(settings.text_column,), (inputs.field, "completion"), *chats, *asked, (inputs.field,)]
        beside = [(SYSTEM, TOOLS), (SYSTEM,), (TOOLS,), ()]
        named = [(*columns, *others) for columns in in_order for others in beside]
    else:
        named = [(settings.text_column,), *((column,) for column in inputs.words)]
    return tuple(tuple(dict.fromkeys((*columns, *key))) for columns in named)


def _plain_text(row: Mapping[str, Any], column: str) -> str | Problem:
    text = row.get(column)
    if isinstance(text, list) and all(isinstance(word, str) for word in text):
        text = " ".join(text)
    if not isinstance(text, str) or not text:
        return Problem(NO_TEXT, f"{column!r} is empty or no text")
    return encoding_problem([text]) or text


def characters(value: Any) -> int:
    """The length of a text, a pair, a list of words, or the messages of a conversation; 0 for anything else."""
    if isinstance(value, dict) and isinstance(messages := value.get("messages"), list):
        return sum(len(message.get("content") or "") for message in messages)
    if isinstance(value, (list, tuple)):
        return sum(len(word) + 1 for word in value)
    return len(value) if isinstance(value, str) else 0


def _key(value: Any) -> Any:
    """A key as JSON: numbers, truth values, lists and objects as they are, else as text; None for none.

    Bytes become base64, as in BigQuery's JSON.
    """
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        value = whole(value)
    if isinstance(value, list):
        return [_key(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _key(each) for name, each in value.items()}
    if value is None or value != value or isinstance(value, (bool, int)):
        return None if value is None or value != value else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return shown_path(value) if isinstance(value, str) else str(value)


def _weight(row: InputRow) -> int:
    return _ROW + (len(row.value) if isinstance(row.value, bytes) else characters(row.value))

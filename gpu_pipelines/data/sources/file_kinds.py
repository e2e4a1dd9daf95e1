"""The format of files whose names do not tell it, by how they begin."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources import compression
from gpu_pipelines.data.sources.files import Dialect, SourceFile, format_of, has_no_suffix, is_json
from gpu_pipelines.data.sources.json_list import begins_a_list
from gpu_pipelines.data.sources.listing import shown_path
from gpu_pipelines.data.sources.row_streams import Meter, as_damaged, text_of
from gpu_pipelines.tasks.formats import FORMATS

_BYTES_LOOKED_AT = 1 << 16
DELIMITERS = (",", ";", "\t", "|")


def kinds_of(
    root: str, names: Sequence[str], settings: PrepareSettings, dialect: Dialect, *, named: bool = False
) -> dict[str, str | None]:
    """The format of each file by its name, and of one whose name tells none by its content; None where neither does.

    Of files whose names differ only in their numbers, such as part-00000 and part-00001, the first that is not empty
    tells it for all.

    Args:
        root: what the place of each begins with.
        names: the rest of each.
        settings: the columns that tell CSV from other text.
        dialect: how text is to be read.
        named: whether the user named the files, and not their folder, in which a .json may be about the data.

    Raises:
        UserError: a file that has to be looked at cannot be read.
    """
    alike: dict[str, str | None] = {}
    kinds: dict[str, str | None] = {}
    groups: dict[str, str] = {}
    for name in names:
        kinds[name] = format_of(name)
        tells_nothing = has_no_suffix(name) or name.lower().endswith(".zip") or (named and is_json(name))
        if kinds[name] is None and tells_nothing:
            group = groups[name] = re.sub("[0-9]+", "0", name)
            if alike.get(group, "") == "":
                file = SourceFile(f"{root}{name}", shown_path(name), dialect=dialect)
                alike[group] = format_by_content(file, settings.column_choices())
    return kinds | {name: alike[group] or None for name, group in groups.items()}


def format_by_content(file: SourceFile, columns: Sequence[Sequence[str]]) -> str | None:
    """The format of a file by how it begins; None for one in no format that can be told for certain, such as text.

    Of a file with nothing in it an empty text.

    Args:
        file: the file.
        columns: which columns a table may have; one with none of these is taken for no table.

    Raises:
        UserError: the file cannot be read.
    """
    with as_damaged(file, "a file"):
        try:
            with file.open() as stored:
                if compression.compression_of(stored) == "zip" and (told := format_of(compression.member_name(stored))):
                    return told
                with compression.decompressed(stored) as content:
                    start = content.read(_BYTES_LOOKED_AT)
            if not start.strip():
                return ""
            told = next((name for name, each in FORMATS.items() if start[each.place :].startswith(each.begins)), None)
            if told:
                return told
            with text_of(file, Meter.of_nothing()) as content:
                return _kind_of_text(content.read(_BYTES_LOOKED_AT), file.dialect, columns)
        except (compression.DamagedError, UnicodeDecodeError, EOFError, *compression.ERRORS):
            return None


def _kind_of_text(start: bytes, dialect: Dialect, columns: Sequence[Sequence[str]]) -> str | None:
    if begins_a_list(start):
        return "jsonl"
    line = next((line for line in start.splitlines(keepends=True) if line.strip()), b"")
    if line.lstrip().removeprefix(b"\xef\xbb\xbf").startswith(b"{"):
        if len(line) == len(start) == _BYTES_LOOKED_AT:  # its end is further on
            return "jsonl"
        try:
            return "jsonl" if isinstance(json.loads(line), dict) else None
        except (ValueError, RecursionError):
            return None
    header = line.decode("utf-8-sig", "replace")
    delimiters = (dialect.delimiter,) if dialect.delimiter else DELIMITERS
    return "csv" if delimiter_of(header, delimiters, columns) else None


def delimiter_of(header: str, delimiters: Sequence[str], columns: Sequence[Sequence[str]]) -> str | None:
    """The first delimiter by which a header has all columns of one of some choices; None where none does."""
    for delimiter in delimiters:
        names = header_names(header, delimiter)
        if any(set(choice) <= set(names) for choice in columns):
            return delimiter
    return None


def header_names(header: str, delimiter: str) -> list[str]:
    """The names in the first line of CSV; none where it cannot be parsed."""
    try:
        return next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error:
        return []

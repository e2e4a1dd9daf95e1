"""Labelled images: folders by class, tables, or tar shards. Lists records, decodes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpu_pipelines.data.class_names import LabelOf, class_of_row
from gpu_pipelines.data.images.named_images import NamedImages
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.source_check import class_of
from gpu_pipelines.data.sources.files import LARGEST_IMAGE, SourceFile
from gpu_pipelines.data.sources.listing import shown_path
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.rows import beside, rows_of
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.errors import UserError


@dataclass(frozen=True)
class Record:
    """One labelled image of the source, not yet read.

    Attributes:
        source: where it is, for people: a path, or a table's name and row.
        label: class name; empty if the source has none for it.
        read: returns the encoded image; raises OSError or ValueError if it cannot be read.
        problem: why the record is unusable before it is read (a malformed line), or None.
        held: bytes of the image that are in memory before it is read.
        slice_value: its value of the column `slice_by`.
        group: its value of the column `group_by`.
    """

    source: str
    label: str
    read: Callable[[], bytes]
    problem: Problem | None = None
    held: int = 0
    slice_value: str = ""
    group: str = ""


def image_records(
    source: SourceFiles, settings: PrepareSettings, meter: Meter, label_of: LabelOf = class_of_row
) -> Iterator[Record]:
    """The records of a source in order.

    Args:
        source: the files.
        settings: `source` is named in messages; the column names are read.
        meter: is told how much has been read.
        label_of: what is learned of a row of a table, as text, or why it says nothing.

    Raises:
        UserError: a file cannot be read or lacks a column.
    """
    if source.format == "images":
        for name in ("slice_by", "group_by"):
            if column := getattr(settings, name):
                raise UserError(f"{name} is {column!r}, but folders of images have no columns.", "Give a table.")
        for name, file in zip(source.names, source, strict=True):
            yield Record(file.name, class_of(source, name), file.read)
            meter.finish_file()
        return
    images = NamedImages.of(source, settings.image_root)
    columns, more = list(settings.column_choices()[0]), settings.columns_beside
    for file, (where, row) in rows_of(source, columns, meter):
        label = row if isinstance(row, Problem) else label_of(row, settings)
        record = _table_record(file, where, row, label, settings, images)
        yield replace(record, **beside(row, settings)) if more else record


def _table_record(
    file: SourceFile,
    where: str,
    row: dict[str, Any] | Problem,
    label: str | Problem,
    settings: PrepareSettings,
    images: NamedImages,
) -> Record:
    if isinstance(row, Problem):
        return Record(where, "", _no_image, problem=row)
    if isinstance(label, Problem):
        return Record(where, "", _no_image, problem=label)
    name, value = shown_path(label), row.get(settings.image_column)
    if isinstance(value, dict):  # Hugging Face's image feature: {"bytes": …, "path": …}
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        encoded = value
        if len(encoded) > LARGEST_IMAGE:
            return Record(where, name, _no_image, problem=Problem("malformed row", "the image is too large"))
        return Record(where, name, lambda: encoded, held=len(encoded))
    if isinstance(value, str) and value.strip():
        path = value.strip()
        return Record(f"{where} {shown_path(path)}", name, lambda: images.file(file, path).read())
    return Record(where, name, _no_image, problem=Problem("malformed row", _instead_of_image(row, settings)))


def _instead_of_image(row: dict[str, Any], settings: PrepareSettings) -> str:
    value = row.get(settings.image_column)
    if isinstance(value, list) or (isinstance(value, dict) and not {"bytes", "path"} & set(value)):
        kind = type(value).__name__
        return f"the column {settings.image_column!r} holds a nested value ({kind}), not an image or a path"
    return f"the column {settings.image_column!r} has no image"


def _no_image() -> bytes:
    raise OSError("no image")

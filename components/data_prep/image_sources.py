"""Labelled images: folders by class, tables, tar shards or a sample data set. Lists records, decodes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_pipelines.components.data_prep.row_streams import Meter, Problem
from gpu_pipelines.components.data_prep.rows import rows_of, slice_value
from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.components.data_prep.source_files import Source, SourceFile, find_source
from gpu_pipelines.errors import UserError
from gpu_pipelines.sources.listing import is_pattern, shown_path
from gpu_pipelines.sources.names import SAMPLE


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
    """

    source: str
    label: str
    read: Callable[[], bytes]
    problem: Problem | None = None
    held: int = 0
    slice_value: str = ""


def image_source(settings: PrepareSettings, scratch: Path) -> Source:
    """Finds the files of a source.

    Args:
        settings: `source` and `source_format` are read.
        scratch: an empty directory; a sample data set is written there and read back like any other.

    Raises:
        UserError: the source does not exist or is empty.
    """
    if not settings.source.startswith(SAMPLE):
        return find_source(settings)
    write_digits(scratch)
    return find_source(replace(settings, source=str(scratch), source_format="images"))


def image_records(source: Source, settings: PrepareSettings, meter: Meter) -> Iterator[Record]:
    """The records of a source in order.

    Args:
        source: the files.
        settings: `source` is named in messages; the column names are read.
        meter: is told how much has been read.

    Raises:
        UserError: a file cannot be read or lacks a column.
    """
    if source.format == "images":
        if settings.slice_by:
            raise UserError(
                f"slice_by is {settings.slice_by!r}, but folders of images have no columns.", "Give a table."
            )
        for file in source:
            yield Record(file.name, _class_of(file, settings), file.read)
            meter.finish_file()
        return
    image, label = settings.image_column, settings.label_column
    remedy = "Name the columns with -p image_column=… and -p label_column=…."
    columns = list(dict.fromkeys(column for column in (image, label, settings.slice_by) if column))
    for file, (where, row) in rows_of(source, columns, remedy, meter):
        record = _table_record(file, where, row, image, label)
        yield replace(record, slice_value=slice_value(row, settings.slice_by)) if settings.slice_by else record


def _class_of(file: SourceFile, settings: PrepareSettings) -> str:
    """The folder below the source; of a pattern, which may leave that open, the folder that the file is in."""
    folders = file.name.split("/")[:-1]
    if is_pattern(settings.source):
        return shown_path(file.place.split("/")[-2]) if "/" in file.place else ""
    return folders[0]


def write_digits(folder: Path) -> None:
    """Writes the UCI handwritten digits (8 × 8 pixels, grey), which ship with scikit-learn, as PNG files by class.

    Source: https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits (test set, 1,797 images).
    """
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    for number, (image, label) in enumerate(zip(pixels, digits.target, strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path)


def _table_record(file: SourceFile, where: str, row: dict[str, Any] | Problem, image: str, label: str) -> Record:
    if isinstance(row, Problem):
        return Record(where, "", _no_image, problem=row)
    named = row.get(label)
    if isinstance(named, (list, dict)):
        detail = f"the column {label!r} holds a {type(named).__name__}"
        return Record(where, "", _no_image, problem=Problem("malformed row", detail))
    name = "" if named is None or named != named else shown_path(str(named)).strip()
    value = row.get(image)
    if isinstance(value, dict):  # Hugging Face's image feature: {"bytes": …, "path": …}
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        encoded = value
        return Record(where, name, lambda: encoded, held=len(encoded))
    if isinstance(value, str) and value.strip():
        path = value.strip()
        return Record(f"{where} {shown_path(path)}", name, lambda: file.beside(path).read())
    return Record(where, name, _no_image, problem=Problem("malformed row", f"the column {image!r} has no image"))


def _no_image() -> bytes:
    raise OSError("no image")

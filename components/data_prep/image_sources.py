"""Where labelled images come from: a folder by class, a table, or a sample data set. Lists records, decodes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.components.data_prep.settings import PrepareSettings, class_folders
from gpu_pipelines.components.data_prep.tables import table_rows
from gpu_pipelines.errors import UserError


@dataclass(frozen=True)
class Record:
    """One labelled image of the source, not yet read.

    Attributes:
        source: where it is, for people: a path, or a table's name and row.
        label: class name; empty if the source has none for it.
        read: returns the encoded image; raises OSError or ValueError if it cannot be read.
        problem: why the record is unusable before it is read (a malformed line), or empty.
    """

    source: str
    label: str
    read: Callable[[], bytes]
    problem: str = ""


def image_records(settings: PrepareSettings, scratch: Path) -> list[Record]:
    """Lists the records of a source.

    Args:
        settings: `source` and the column names are read.
        scratch: an empty directory; a sample data set is written there and read back like any other.

    Raises:
        UserError: the source does not exist, is empty, or does not have the columns.
    """
    if settings.source.startswith("sample:"):
        write_digits(scratch)
        return _folder_records(scratch, settings.source)
    if problems := settings.problems_here():
        raise UserError.of_all(problems)
    path = Path(settings.source).expanduser()
    if path.is_dir():
        return _folder_records(path, settings.source)
    records = _table_records(path, settings)
    if not records:
        raise UserError(f"The table {settings.source} has no rows.")
    return records


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


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as text; bytes of it that are not UTF-8 are shown as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _folder_records(folder: Path, source: str) -> list[Record]:
    records = [
        Record(shown_path(path.relative_to(folder)), shown_path(class_folder.name), path.read_bytes)
        for class_folder in class_folders(folder)
        for path in _files_below(class_folder)
    ]
    if not records:
        raise UserError(f"The sub-folders of {source} hold no files.", "Put the images of each class into them.")
    return records


def _files_below(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise UserError(f"The folder {error.filename} cannot be read: {error.strerror}.", "Mend its permissions.")

    found = []
    for place, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in files if not name.startswith(".")]
    return sorted(path for path in found if path.is_file())


def _table_records(path: Path, settings: PrepareSettings) -> list[Record]:
    image, label = settings.image_column, settings.label_column
    remedy = "Name the columns with -p image_column=… and -p label_column=…."
    rows = table_rows(path, [image, label], remedy)
    return [_table_record(path, where, row, image, label) for where, row in rows]


def _table_record(path: Path, where: str, row: dict[str, Any] | str, image: str, label: str) -> Record:
    source = f"{path.name}:{where}"
    if isinstance(row, str):
        return Record(source, "", _no_image, problem=row)
    named = row.get(label)
    if isinstance(named, (list, dict)):
        return Record(source, "", _no_image, problem=f"the column {label!r} holds a {type(named).__name__}")
    name = "" if named is None or named != named else str(named).strip()
    value = row.get(image)
    if isinstance(value, dict):  # Hugging Face's image feature: {"bytes": …, "path": …}
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        encoded = value
        return Record(source, name, lambda: encoded)
    if isinstance(value, str) and value.strip():
        file = path.parent / value.strip()
        shown = value.strip().encode("utf-8", "backslashreplace").decode("utf-8")
        return Record(f"{source} {shown}", name, lambda: _read_regular(file))
    return Record(source, name, _no_image, problem=f"the column {image!r} has no image")


def _read_regular(file: Path) -> bytes:
    # A table can name anything; a pipe or a device would block for ever or never end.
    if file.exists() and not file.is_file():
        raise OSError("not a regular file")
    return file.read_bytes()


def _no_image() -> bytes:
    raise OSError("no image")

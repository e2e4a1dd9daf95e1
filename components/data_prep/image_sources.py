"""Where labelled images come from: a folder by class, a table, or a sample data set. Lists records, decodes nothing."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.components.data_prep.settings import PrepareSettings, class_folders
from gpu_pipelines.errors import UserError

_EXTRA = "\0extra"


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
    rows = {".csv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}[path.suffix.lower()]
    try:
        return [_table_record(path, where, row, image, label) for where, row in rows(path, [image, label])]
    except OSError as error:
        raise UserError(f"The table {path} cannot be read: {error.strerror or error}.") from None


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


def _require_columns(path: Path, has: list[str], wanted: list[str]) -> None:
    missing = [column for column in wanted if column not in has]
    if missing:
        raise UserError(
            f"The table {path} has no column {' and no column '.join(repr(column) for column in missing)}; "
            f"it has {', '.join(has) or 'none at all'}.",
            "Name the columns with -p image_column=… and -p label_column=….",
        )


def _csv_rows(path: Path, columns: list[str]) -> Iterator[tuple[str, dict[str, Any] | str]]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    # Bytes that are not UTF-8 are kept apart as escapes: replaced by one mark, two classes could become one.
    with path.open(newline="", encoding="utf-8-sig", errors="backslashreplace") as file:
        # Before Python 3.11 the reader gives up at a NUL; no path has one, so such a row is rejected either way.
        reader = csv.DictReader((line.replace("\0", "\\0") for line in file), restkey=_EXTRA)
        try:
            _require_columns(path, [name for name in reader.fieldnames or [] if name], columns)
            for row in reader:
                yield f"{reader.line_num}", "more fields than the header has" if _EXTRA in row else row
        except csv.Error as error:
            raise UserError(f"The table {path} is not CSV: {error} (near line {reader.line_num}).") from None


def _jsonl_rows(path: Path, columns: list[str]) -> Iterator[tuple[str, dict[str, Any] | str]]:
    seen: dict[str, None] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield f"{number}", f"not JSON: {error}"
                continue
            if not isinstance(row, dict):
                yield f"{number}", "not a JSON object"
                continue
            seen.update(dict.fromkeys(row))
            yield f"{number}", row
    if seen:
        _require_columns(path, list(seen), columns)


def _parquet_rows(path: Path, columns: list[str]) -> Iterator[tuple[str, dict[str, Any] | str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _require_columns(path, file.schema_arrow.names, columns)
            number = 0
            for batch in file.iter_batches(columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{number}", row
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if getattr(error, "errno", None):  # of the file system; Arrow raises OSError without one for corrupt data
            raise
        raise UserError(f"The table {path} is not Parquet that can be read: {error}.") from None

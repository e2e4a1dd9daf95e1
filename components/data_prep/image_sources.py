"""Where labelled images come from: a folder by class, a table, or a sample data set. Lists records, decodes nothing."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.components.data_prep.settings import PrepareSettings, class_folders
from gpu_pipelines.errors import UserError


@dataclass(frozen=True)
class Record:
    """One labelled image of the source, not yet read.

    Attributes:
        source: where it is, for people: a path, or a table's name and row.
        label: class name; empty if the source has none for it.
        read: returns the encoded image; raises OSError if it cannot be read.
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


def _folder_records(folder: Path, source: str) -> list[Record]:
    records = [
        Record(path.relative_to(folder).as_posix(), class_folder.name, path.read_bytes)
        for class_folder in class_folders(folder)
        for path in sorted(class_folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    ]
    if not records:
        raise UserError(f"The sub-folders of {source} hold no files.", "Put the images of each class into them.")
    return records


def _table_records(path: Path, settings: PrepareSettings) -> list[Record]:
    image, label = settings.image_column, settings.label_column
    rows = {".csv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}[path.suffix.lower()]
    return [_table_record(path, where, row, image, label) for where, row in rows(path, [image, label])]


def _table_record(path: Path, where: str, row: dict[str, Any] | str, image: str, label: str) -> Record:
    source = f"{path.name}:{where}"
    if isinstance(row, str):
        return Record(source, "", _no_image, problem=row)
    value = row.get(image)
    if isinstance(value, dict):  # Hugging Face's image feature: {"bytes": …, "path": …}
        value = value.get("bytes") or value.get("path")
    name = "" if row.get(label) is None else str(row[label]).strip()
    if isinstance(value, bytes):
        encoded = value
        return Record(source, name, lambda: encoded)
    if isinstance(value, str) and value.strip():
        file = path.parent / value.strip()
        return Record(f"{source} {value.strip()}", name, file.read_bytes)
    return Record(source, name, _no_image, problem=f"the column {image!r} has no image")


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
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        reader = csv.DictReader(file, restkey="\0extra")
        try:
            _require_columns(path, [name for name in reader.fieldnames or [] if name], columns)
            for number, row in enumerate(reader, start=2):
                yield f"{number}", "more fields than the header has" if "\0extra" in row else row
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
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"The table {path} is not Parquet: {error}.") from None

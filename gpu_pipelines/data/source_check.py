"""What is wrong with a source, as far as the names of its files, its columns and a small table tell; in seconds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from gpu_pipelines.data.class_names import class_in
from gpu_pipelines.data.divided import require_classes_not_splits
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.archives import archive_of
from gpu_pipelines.data.sources.files import format_of
from gpu_pipelines.data.sources.listing import REMEDY_OF_ARCHIVE, TABLE_BESIDE, is_pattern, remedy_of_table, shown_path
from gpu_pipelines.data.sources.reader import reader_of
from gpu_pipelines.data.sources.row_streams import Meter, Problem, as_damaged
from gpu_pipelines.data.sources.rows import columns_read, rows_of, source_columns
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.sources.sources import source_of
from gpu_pipelines.data.usable import require_labels
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.formats import TABLES
from gpu_pipelines.tasks.task import Task
from gpu_pipelines.tasks.tasks import task_named

#: Tables of at most so many bytes and rows are looked through for their classes.
_BYTES_LOOKED_THROUGH, _ROWS_LOOKED_THROUGH = 16 << 20, 10_000
#: The tables of images in folders that `datasets` looks for.
_TABLES_OF_IMAGES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
_OF_SHARDS = "In shards of WebDataset it is in KEY.cls or KEY.json beside each image."


def problems_here(settings: PrepareSettings) -> list[str]:
    """What is wrong with the sources as seen from this machine: names, columns, the classes of what is small."""
    found = []
    for each in settings.by_source():
        try:
            source_of(each.source).require_readable(each)
        except UserError as error:
            found.append(error.in_one_line)
    return found


def model_problems_here(settings: PrepareSettings, model: str, augmentation: str = "") -> list[str]:
    """What is wrong with a model, and changes of images, for the columns of the source, if that is a table in files."""
    kind, task = source_of(settings.source), task_named(settings.task)
    if type(task).model_problems is Task.model_problems:  # it has none to tell, and listing a bucket may take minutes
        return []
    if kind.scheme or "source_format" not in kind.parameters:  # it is no file, and would be fetched or made
        return []
    if archive_of(settings):
        return []
    source = kind.open(settings, Path())
    if source.format not in TABLES or not len(source):
        return []
    columns = columns_read(source, settings)
    found = list(task.model_problems(settings, columns, model))
    if augmentation and not task.learns_from_images(settings, columns):
        told = f"augmentation is {augmentation!r}, which changes images, and {settings.source} is not learned from any."
        found.append(f"{told} Leave it empty.")
    return found


def require_usable_source(source: SourceFiles, settings: PrepareSettings) -> None:
    """Checks a source before all of it is read.

    Args:
        source: the files.
        settings: the task and the columns.

    Raises:
        UserError: a table lacks a column, holds something else in it than texts, there is a single class, or the
            folders of images are splits or have tables of their own.
    """
    if source.format == "images":
        classes = {class_of(source, name) for name in source.names}
        require_classes_not_splits(classes, source.given)
        _require_no_tables_of_images(source, classes, settings)
        tables = [name for name, reason in source.passed_over.items() if reason == TABLE_BESIDE]
        if len(classes) == 1 and len(tables) == 1:  # as data sets of the hub have images
            (only,), (table,) = classes, tables
            raise UserError(
                f"The source {source.given} has a single folder of images, {only!r}, and the table {table}.",
                remedy_of_table(source.given, table),
            )
        require_labels(classes, settings)
        _require_no_table_of_classes(source, tables, settings)
    elif source.format in (*TABLES, "tar") and len(source):
        if source.sizes and not any(source.sizes):
            raise UserError(f"The source {source.given} has no rows: its files are empty.")
        _require_columns(source, settings)
        if source.format in TABLES and task_named(settings.task).has_classes:
            _require_classes(source, settings)


def _require_no_tables_of_images(source: SourceFiles, classes: Collection[str], settings: PrepareSettings) -> None:
    """Refuses folders that each have a table of their images: `datasets` reads the classes there, not in the names."""
    if settings.source_format != "auto":
        return
    names = set(source.names)
    for table in _TABLES_OF_IMAGES:
        if all(f"{folder}/{table}" in names for folder in classes):
            raise UserError(
                f"Each folder of {source.given} has a table {table}, so its name may not be a class.",
                f"{remedy_of_table(source.given, f'*/{table}')} "
                "If the names of the folders are the classes, give -p source_format=images.",
            )


def _require_no_table_of_classes(source: SourceFiles, tables: Sequence[str], settings: PrepareSettings) -> None:
    """Refuses folders beside a table that has classes for their images, which `datasets` reads instead."""
    if settings.source_format != "auto":
        return
    for table in (name for name in tables if name in _TABLES_OF_IMAGES):
        rows = replace(source, format=str(format_of(table)), names=(table,), sizes=(), passed_over={})
        has: list[str] = []
        with suppress(UserError):  # a table that nobody asked for may be damaged
            has = source_columns(rows, [(settings.image_column, settings.label_column)])
        if settings.label_column in has:
            raise UserError(
                f"The table {table} beside the folders of {source.given} has a column {settings.label_column!r}, so "
                "their names may not be classes.",
                f"{remedy_of_table(source.given, table)} "
                "If the names of the folders are the classes, give -p source_format=images.",
            )


def class_of(source: SourceFiles, name: str) -> str:
    """The class of an image in folders by class: the folder below the source; of a pattern the one it is in."""
    if is_pattern(source.given):  # which may leave the former open
        folders = f"{source.root}{name}".split("/")
        return shown_path(folders[-2]) if len(folders) > 1 else ""
    return shown_path(name).split("/")[0]


def _require_columns(source: SourceFiles, settings: PrepareSettings) -> None:
    task = task_named(settings.task)
    has = source_columns(source, settings.column_choices())
    if not has:  # what is wrong with the rows is said one by one
        return
    try:
        wanted = settings.columns_of(has)
    except UserError as error:
        if source.format != "tar" or len(has) > 1:  # beside the images
            raise
        raise UserError(error.problem, f"{_OF_SHARDS} {REMEDY_OF_ARCHIVE}") from None
    first = next(iter(source))
    with as_damaged(first, source.format):
        nested = reader_of(source.format).nested(first)
    for column in wanted:
        kind = nested.get(column, "")
        if kind and not task.may_nest(settings, column, kind):
            raise UserError(
                f"The column {column!r} of {first.name} is nested ({kind[:200]}), but a column of texts is needed.",
                "Name another column, or write its text into a column of its own.",
            )


def _require_classes(source: SourceFiles, settings: PrepareSettings) -> None:
    if not any(source.sizes) or sum(source.sizes) > _BYTES_LOOKED_THROUGH:
        return
    rows = _labels(source, settings)
    looked_at = list(islice(rows, _ROWS_LOOKED_THROUGH))
    if not looked_at:
        raise UserError(f"The source {source.given} has no rows.")
    labels = [label for label in looked_at if isinstance(label, str)]
    if labels and len(set(labels)) < 2 and next(rows, None) is None:
        require_labels(labels, settings)


def _labels(source: SourceFiles, settings: PrepareSettings) -> Iterator[str | Problem]:
    # All columns tell the delimiter of CSV; of other tables no more are read than are needed.
    columns = list(settings.column_choices()[0]) if source.format == "csv" else [settings.label_column]
    for _, (_, row) in rows_of(source, columns, Meter(source)):
        yield row if isinstance(row, Problem) else class_in(row.get(settings.label_column), settings)

"""Prepares a data set: reads, checks, splits and writes it in the dataset format."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np

from gpu_pipelines.artifacts.dataset import DatasetWriter, Feature, Manifest
from gpu_pipelines.components.data_prep.content_split import split_of
from gpu_pipelines.components.data_prep.image_features import (
    ImageGeometry,
    UnreadableImageError,
    choose_geometry,
    decode,
)
from gpu_pipelines.components.data_prep.image_sources import Record, image_records, image_source
from gpu_pipelines.components.data_prep.row_streams import Meter
from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.components.data_prep.source_files import shown_path
from gpu_pipelines.components.data_prep.usable import require_labels, require_usable
from gpu_pipelines.errors import UserError

EXAMPLES_FOR_GEOMETRY = 200
PROGRESS_SECONDS = 2.0

In = TypeVar("In")
Out = TypeVar("Out")


def prepare_data(settings: PrepareSettings, directory: Path) -> Manifest:
    """Prepares the dataset that `settings` describe in `directory`.

    Args:
        settings: what to read and how to split it.
        directory: where the dataset goes.

    Returns:
        The manifest of the dataset written.

    Raises:
        UserError: a setting is wrong, the source has no usable rows, or a split or class would be empty.
    """
    if problems := settings.problems():
        raise UserError.of_all(problems)
    with tempfile.TemporaryDirectory(prefix="gpu-pipelines-sample-") as scratch:
        print(f"reading {settings.source}", flush=True)
        if settings.task == "image_classification":
            return _prepare_images(settings, directory, Path(scratch))
        # Loading a tokenizer imports transformers, which images do not need.
        from gpu_pipelines.components.data_prep.prepare_text import prepare_text

        return prepare_text(settings, directory, Path(scratch))


def _prepare_images(settings: PrepareSettings, directory: Path, scratch: Path) -> Manifest:
    source = image_source(settings, scratch)
    records = list(image_records(source, settings, Meter(source)))
    labels = require_labels(records, settings)
    geometry = choose_geometry(_spread_out(records), settings.image_size, settings.color_mode, EXAMPLES_FOR_GEOMETRY)
    if geometry is None:
        raise UserError(
            f"None of the {len(records):,} files of {settings.source} is an image that can be read.",
            "Check that the source holds images (PNG, JPEG, WebP, …) and not something else.",
        )
    with DatasetWriter(
        directory,
        task=settings.task,
        source=shown_path(settings.source),
        features={"image": Feature("uint8", geometry.shape), "label": Feature("int32")},
        labels=labels,
        preprocessing=geometry.preprocessing(),
    ) as writer:
        _write_rows(records, labels, geometry, settings, writer)
        return writer.finish(check=lambda manifest: require_usable(manifest, settings))


def _spread_out(records: list[Record]) -> Iterator[bytes]:
    """All images that can be read, evenly spaced ones first: the first files of a folder are all of one class."""
    stride = max(1, len(records) // EXAMPLES_FOR_GEOMETRY)
    for offset in range(stride):
        for record in records[offset::stride]:
            if not record.problem:
                with suppress(OSError, ValueError):
                    yield record.read()


def _write_rows(
    records: list[Record], labels: list[str], geometry: ImageGeometry, settings: PrepareSettings, writer: DatasetWriter
) -> None:
    index = {label: number for number, label in enumerate(labels)}

    def load(record: Record) -> tuple[str, np.ndarray] | tuple[str, str]:
        """Split and pixels of a usable record, reason and detail of another."""
        if record.problem:
            return record.problem
        if not record.label:
            return "no label", ""
        try:
            encoded = record.read()
            pixels = decode(encoded, geometry)
        except (OSError, ValueError) as error:
            return "file cannot be read", getattr(error, "strerror", None) or str(error)
        except UnreadableImageError as error:
            return "unreadable image", str(error)
        return split_of(encoded, settings.val_fraction, settings.test_fraction, settings.split_seed), pixels

    started = reported = time.monotonic()
    # Pillow releases the interpreter lock while it decodes and resizes, so threads use all cores.
    with ThreadPoolExecutor() as pool:
        for number, (record, (first, second)) in enumerate(_in_order(pool, load, records), start=1):
            if isinstance(second, str):
                writer.reject(record.source, first, second)
            else:
                writer.add(first, record.source, {"image": second, "label": index[record.label]})
            now = time.monotonic()
            if now - reported > PROGRESS_SECONDS:
                reported = now
                rate = number / (now - started)
                left = (len(records) - number) / rate
                print(f"row {number:,}/{len(records):,}  {rate:,.0f} rows/s  {left:.0f} s left", flush=True)


def _in_order(pool: ThreadPoolExecutor, work: Callable[[In], Out], items: list[In]) -> Iterator[tuple[In, Out]]:
    """Like `pool.map`, but with a bounded number of results waiting, so that memory stays constant."""
    chunk = 256
    for start in range(0, len(items), chunk):
        batch = items[start : start + chunk]
        yield from zip(batch, pool.map(work, batch), strict=True)

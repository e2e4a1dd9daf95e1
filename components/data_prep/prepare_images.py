"""Prepares images: reads, checks, splits, decodes and writes them in the dataset format."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpu_pipelines.artifacts.dataset import REJECTED, DatasetWriter, Feature, Manifest
from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.components.data_prep.content_split import content_number, split_at
from gpu_pipelines.components.data_prep.duplicates import SeenRecords, record_number
from gpu_pipelines.components.data_prep.image_sources import Record, image_records, image_source
from gpu_pipelines.components.data_prep.image_survey import survey
from gpu_pipelines.components.data_prep.parallel import batches, cores, in_order
from gpu_pipelines.components.data_prep.progress import Progress
from gpu_pipelines.components.data_prep.row_streams import Meter, Problem
from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.components.data_prep.source_files import Source
from gpu_pipelines.components.data_prep.usable import require_labels, require_usable
from gpu_pipelines.recipes.image_features import ImageGeometry, UnreadableImageError, decode
from gpu_pipelines.sources.listing import shown_path

# What a thread gets at once: so many images, or bytes of them.
IMAGES_AT_ONCE = 32
BYTES_AT_ONCE = 4 << 20
# Requests to object storage that wait at the same time; each takes tens of milliseconds and no processor.
REMOTE_THREADS = 32


class Loaded(NamedTuple):
    """A usable image: the `content_number` of its bytes, and its pixels."""

    content: int
    pixels: np.ndarray


def prepare_images(settings: PrepareSettings, directory: Path, scratch: Path, fingerprint: str = "") -> Manifest:
    """Prepares the dataset of labelled images.

    Args:
        settings: what to read and how; already checked.
        directory: where the dataset goes.
        scratch: a directory with the empty directories `sample` and `seen`.
        fingerprint: of the source's files; empty if not known.

    Raises:
        UserError: the source has no usable rows, or a split or class would be empty.
    """
    source = image_source(settings, scratch / "sample")
    found = survey(source, settings)
    labels = require_labels(found.labels, settings)
    geometry = found.geometry
    assert geometry is not None
    features = {"image": Feature("uint8", geometry.shape), "label": Feature("int32")}
    with DatasetWriter(
        directory,
        task=settings.task,
        source=shown_path(settings.source),
        features=features,
        labels=labels,
        preprocessing=geometry.preprocessing(),
        slice_by=settings.slice_by,
        rows_per_shard=settings.rows_per_shard(features),
        source_fingerprint=fingerprint,
    ) as writer:
        read = _write_rows(source, labels, geometry, settings, writer, SeenRecords(scratch / "seen"))
        return writer.finish(
            lambda manifest: require_usable(manifest, settings, [directory / REJECTED]), rows_read=read
        )


def _write_rows(
    source: Source,
    labels: list[str],
    geometry: ImageGeometry,
    settings: PrepareSettings,
    writer: DatasetWriter,
    seen: SeenRecords,
) -> int:
    """Writes the rows and returns how many records were read."""
    index = {label: number for number, label in enumerate(labels)}

    def load_all(records: list[Record]) -> list[tuple[Record, Loaded | Problem]]:
        return [(record, _load(record, geometry, settings.split_seed)) for record in records]

    meter = Meter(source)
    progress = Progress("preparing", meter)
    size = geometry.size * geometry.size * geometry.channels
    records = image_records(source, settings, meter)
    batched = batches(records, IMAGES_AT_ONCE, BYTES_AT_ONCE, lambda record: size + record.held)
    threads = max(cores(), REMOTE_THREADS) if is_remote(source.root) else cores()
    # Pillow releases the interpreter lock while it decodes and resizes, so threads use all cores.
    with ThreadPoolExecutor(threads) as pool:
        for loaded in in_order(pool, load_all, batched, ahead=2 * threads):
            _write_new(loaded, index, settings, writer, seen)
            progress.advance(len(loaded))
    return progress.rows


def _load(record: Record, geometry: ImageGeometry, seed: int) -> Loaded | Problem:
    if record.problem:
        return record.problem
    if not record.label:
        return Problem("no label")
    try:
        encoded = record.read()
        pixels = decode(encoded, geometry)
    except (OSError, ValueError) as error:
        return Problem("file cannot be read", getattr(error, "strerror", None) or str(error))
    except UnreadableImageError as error:
        return Problem("unreadable image", str(error))
    return Loaded(content_number(encoded, seed), pixels)


def _write_new(
    loaded: Sequence[tuple[Record, Loaded | Problem]],
    index: dict[str, int],
    settings: PrepareSettings,
    writer: DatasetWriter,
    seen: SeenRecords,
) -> None:
    good = []
    for record, image in loaded:
        if isinstance(image, Problem):
            writer.reject(record.source, *image)
        else:
            good.append((record, image))
    is_new = seen.add([record_number(image.content, record.label) for record, image in good])
    for (record, image), new in zip(good, is_new, strict=True):
        if new or not settings.remove_duplicates:
            split = split_at(image.content, settings.val_fraction, settings.test_fraction)
            row = {"image": image.pixels, "label": index[record.label]}
            writer.add(split, record.source, row, slice_value=record.slice_value)
        else:
            writer.leave_out_duplicates()

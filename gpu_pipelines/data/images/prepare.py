"""Prepares images: reads, checks, splits, decodes and writes them in the dataset format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Feature
from gpu_pipelines.artifacts.image_features import ImageGeometry, UnreadableImageError, decode, smaller_file
from gpu_pipelines.artifacts.remote_files import is_remote
from gpu_pipelines.data.class_names import ClassNumbers
from gpu_pipelines.data.images.sources import Record, image_records
from gpu_pipelines.data.images.survey import Survey
from gpu_pipelines.data.preparation import Preparation
from gpu_pipelines.data.settings import MAX_IMAGE_SIZE, PrepareSettings
from gpu_pipelines.data.source_check import require_usable_source
from gpu_pipelines.data.sources.row_streams import Meter, Problem
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.sources.sources import open_source
from gpu_pipelines.data.splits.content_split import content_number, split_number
from gpu_pipelines.data.splits.record_index import Entry
from gpu_pipelines.data.units.host import Host
from gpu_pipelines.data.units.parallel import batches, in_order
from gpu_pipelines.data.units.progress import Progress
from gpu_pipelines.data.units.source_shards import SourceShard
from gpu_pipelines.data.units.units import Group, Made, Sizes, Writing, write_group
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.tasks import task_named

# What a thread gets at once: so many images, or bytes of them.
IMAGES_AT_ONCE = 32
BYTES_AT_ONCE = 4 << 20
# Requests to object storage that wait at the same time; each takes tens of milliseconds and no processor.
REMOTE_THREADS = 32
# Bytes of pixels above which a dataset keeps the files of its images: half of the disk that Vertex AI gives a machine.
MOST_PIXELS = 50e9


class ImagePreparation(Preparation[Survey]):
    """Images, each with its class; or with what else a subclass learns of it.

    Args:
        settings: what to read and how; already checked.
        scratch: an empty directory.
        source: the files, where they have been found.

    Raises:
        UserError: the source does not exist or is empty.
    """

    def __init__(self, settings: PrepareSettings, scratch: Path, source: SourceFiles | None = None) -> None:
        self.settings, self.task = settings, task_named(settings.task)
        self.source = source or open_source(settings, scratch / "source")
        self.test_source = open_source(settings.of_test_source(), scratch / "test") if settings.test_source else None
        require_usable_source(self.source, settings)

    def _threads(self, host: Host) -> int:
        return max(host.cores, REMOTE_THREADS) if is_remote(self.source.root) else host.cores

    def empty_survey(self) -> Survey:
        return Survey()

    def survey(self, share: SourceFiles, host: Host) -> Survey:
        return self._looked_through(share, self.settings, host)

    def survey_of_test(self, share: SourceFiles, host: Host) -> Survey:
        # Size and colours are those of the source.
        settings = replace(self.settings.of_test_source(), image_size=MAX_IMAGE_SIZE, color_mode="RGB")
        return self._looked_through(share, settings, host)

    def _looked_through(self, share: SourceFiles, settings: PrepareSettings, host: Host) -> Survey:
        """Reads files once; of images in files of their own only some."""
        meter, found = Meter(share), self.empty_survey()
        is_open = not settings.image_size or settings.color_mode == "auto"
        for record in found.usable(self.records(share, meter), meter, host.check):
            found.labels.update(self.names_in(record))
            if is_open:
                found.look_at(record)
        return found

    def plan(self, found: Survey, of_test: Survey | None, folder: Path) -> dict[str, Any]:
        if not found.rows:
            raise UserError(f"The source {self.settings.source} has no rows.")
        geometry = found.geometry(self.settings)
        print(found.told(geometry), flush=True)
        size = int(np.prod(geometry.shape)) * (found.rows + (of_test.rows if of_test else 0))
        storage = self.settings.image_storage
        if storage == "auto":
            storage = "compressed" if size > MOST_PIXELS else "pixels"
        if storage == "compressed":
            print(f"images are kept compressed: their pixels would be {size / 1e9:,.3g} GB", flush=True)
        return {"labels": self.labels(found, of_test), "geometry": asdict(geometry), "image_storage": storage}

    def records(self, source: SourceFiles, meter: Meter) -> Iterator[Record]:
        return image_records(source, self.settings, meter)

    def names_in(self, record: Record) -> Iterable[str]:
        """The names in a record that are all to be known before the first row is made, such as that of its class."""
        return (record.label,) if self.task.has_classes else ()

    def target_features(self) -> dict[str, Feature]:
        """The features of a row besides the image."""
        return {"label": Feature("int32")}

    def target_of(self, plan: Mapping[str, Any]) -> Callable[[Record], dict[str, Any]]:
        """What tells the values of these features for a record."""
        index = ClassNumbers(plan["labels"])
        return lambda record: {"label": index[record.label]}

    def preprocessing(self, geometry: ImageGeometry) -> dict[str, Any]:
        """What whoever serves the model has to know of how images are prepared."""
        return geometry.preprocessing()

    def entries(self, shard: SourceShard, host: Host) -> Iterator[Entry]:
        def content_of_all(records: list[Record]) -> list[int | None]:
            return [_content(record, self.settings.split_seed) for record in records]

        meter = Meter(shard.source)
        progress = Progress("looking for duplicates", meter)
        batched = batches(self.records(shard.source, meter), IMAGES_AT_ONCE, BYTES_AT_ONCE, lambda r: r.held)
        threads = self._threads(host)
        with ThreadPoolExecutor(threads) as pool:
            work = in_order(pool, lambda some: (some, content_of_all(some)), batched, ahead=2 * threads)
            for records, contents in work:
                host.check()
                for place, (record, content) in enumerate(zip(records, contents, strict=True), start=progress.rows):
                    if content is not None:
                        split = split_number(content, record.group, self.settings.split_seed)
                        yield Entry(place, content, record.label, record.source, split)
                progress.advance(len(records))

    def sizes(self, plan: Mapping[str, Any], unit_weight: int) -> Sizes[Record]:
        size = int(np.prod(_geometry(plan).shape))
        return Sizes(lambda record: size + record.held, IMAGES_AT_ONCE, BYTES_AT_ONCE, unit_weight)

    def row_form(self, plan: Mapping[str, Any]) -> tuple[dict[str, Feature], dict[str, Any]]:
        geometry = _geometry(plan)
        encoded = asdict(geometry) if _keeps_files(plan) else None
        image = Feature("uint8", geometry.shape, encoded)
        return {"image": image, **self.target_features()}, self.preprocessing(geometry)

    def write(self, plan: Mapping[str, Any], folder: Path, writing: Writing) -> Iterator[None]:
        made_of = partial(_made, plan=plan, target_of=self.target_of(plan), seed=self.settings.split_seed)

        def load_all(group: Group[Record]) -> tuple[Group[Record], list[Made | Problem]]:
            return group, [made_of(record) for record in group.items]

        progress = Progress("preparing", writing.units.meter)
        # Enough to be decoded while this thread hashes and writes a shard.
        threads = self._threads(writing.host)
        ahead = 2 * threads + 2 * writing.host.cores
        # Pillow releases the interpreter lock while it decodes and resizes, so threads use all cores.
        with ThreadPoolExecutor(threads) as pool:
            for group, made in in_order(pool, load_all, writing.units.groups(), ahead):
                write_group(group, made, writing)
                progress.advance(len(made))
                yield


def _geometry(plan: Mapping[str, Any]) -> ImageGeometry:
    return ImageGeometry(**plan["geometry"])


def _content(record: Record, seed: int) -> int | None:
    """The `content_number` of a record; None for one that cannot be read or has no label."""
    if record.problem or not record.label:
        return None
    try:
        return content_number(record.read(), seed)
    except (OSError, ValueError):
        return None


def _keeps_files(plan: Mapping[str, Any]) -> bool:
    return bool(plan["image_storage"] == "compressed")


def _made(
    record: Record, plan: Mapping[str, Any], target_of: Callable[[Record], dict[str, Any]], seed: int
) -> Made | Problem:
    if record.problem:
        return record.problem
    if not record.label:
        return Problem("no label")
    try:
        encoded = record.read()
        pixels = decode(encoded, _geometry(plan))
    except (OSError, ValueError) as error:
        return Problem("file cannot be read", getattr(error, "strerror", None) or str(error))
    except UnreadableImageError as error:
        return Problem("unreadable image", str(error))
    image = smaller_file(encoded, pixels) if _keeps_files(plan) else pixels
    content = content_number(encoded, seed)
    return Made(content, split_number(content, record.group, seed), {"image": image, **target_of(record)})

"""The first pass over images: which classes there are, and what size and colours the images have."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from gpu_pipelines.components.data_prep.image_sources import Record, image_records
from gpu_pipelines.components.data_prep.progress import Progress
from gpu_pipelines.components.data_prep.row_streams import Meter
from gpu_pipelines.components.data_prep.settings import PrepareSettings
from gpu_pipelines.components.data_prep.source_files import Source
from gpu_pipelines.errors import UserError
from gpu_pipelines.recipes.image_features import (
    ImageGeometry,
    UnreadableImageError,
    choose_geometry,
    open_image,
)

EXAMPLES = 200


@dataclass
class Survey:
    """What the first pass finds: the names of the classes, and what the images are turned into."""

    labels: set[str] = field(default_factory=set)
    geometry: ImageGeometry | None = None


def survey(source: Source, settings: PrepareSettings) -> Survey:
    """Reads a source once; of images in files of their own only some.

    Args:
        source: the files.
        settings: the columns, and what is left open of `image_size` and `color_mode`.

    Raises:
        UserError: the source cannot be read, or holds no image where one is needed.
    """
    meter = Meter(source)
    progress = Progress("looking through", meter)
    found = Survey()
    examples = _Examples()
    is_open = not settings.image_size or settings.color_mode == "auto"
    for record in image_records(source, settings, meter):
        progress.advance()
        if record.problem:
            continue
        found.labels.add(record.label)
        if is_open:
            examples.offer(record)
    found.geometry = choose_geometry(examples, settings.image_size, settings.color_mode, EXAMPLES)
    if found.geometry is None:
        raise UserError(
            f"None of the {progress.rows:,} files of {settings.source} is an image that can be read.",
            "Check that the source holds images (PNG, JPEG, WebP, …) and not something else.",
        )
    return found


class _Examples:
    """Some readable images, each as likely as any other, and the same each time: a reservoir (Vitter 1985, R)."""

    def __init__(self) -> None:
        self._random = random.Random(0)  # noqa: S311 (no secret)
        self._kept: list[bytes] = []
        self._readable = 0

    def offer(self, record: Record) -> None:
        place = len(self._kept) if len(self._kept) < EXAMPLES else self._random.randrange(self._readable + 1)
        if place >= EXAMPLES:
            self._readable += 1
            return
        with suppress(OSError, ValueError, UnreadableImageError):
            encoded = record.read()
            open_image(encoded)
            self._readable += 1
            self._kept[place : place + 1] = [encoded]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._kept)

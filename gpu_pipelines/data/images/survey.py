"""The first pass over images: which classes there are, and what size and colours the images have."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_pipelines.data.images.sources import Record
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.sources.row_streams import Meter
from gpu_pipelines.data.sources.source import SourceFiles
from gpu_pipelines.data.splits.content_split import content_number
from gpu_pipelines.data.units.progress import Progress
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.image_features import (
    ImageGeometry,
    UnreadableImageError,
    choose_geometry,
    open_image,
)

EXAMPLES = 200
#: Among the problems of a survey, that of images that cannot be opened.
UNREADABLE = "unreadable image"


class Examples:
    """Some readable images, each as likely as any other: those whose names have the smallest hashes."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, bytes]] = []

    def offer(self, record: Record) -> str:
        """Takes a record if it is one of them; no other is read. Returns why it cannot be read, or nothing."""
        # Negative, because heapq has the smallest first.
        place = -content_number(record.source.encode("utf-8", "surrogatepass"))
        if len(self._kept) == EXAMPLES and place <= self._kept[0][0]:
            return ""
        try:
            encoded = record.read()
            open_image(encoded)
        except (OSError, ValueError, UnreadableImageError) as error:
            return getattr(error, "strerror", None) or str(error)
        self.add(place, encoded)
        return ""

    def add(self, place: int, encoded: bytes) -> None:
        """Takes an image that another has found, if it is one of them."""
        heapq.heappush(self._kept, (place, encoded))
        if len(self._kept) > EXAMPLES:
            heapq.heappop(self._kept)

    def items(self) -> list[tuple[int, bytes]]:
        """The images, and where each stands among them."""
        return sorted(self._kept)


@dataclass
class Survey:
    """What the first pass finds: the names of the classes, some images, and the first row with each problem."""

    rows: int = 0
    labels: set[str] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)
    examples: Examples = field(default_factory=Examples)

    def geometry(self, settings: PrepareSettings) -> ImageGeometry:
        """What the images are turned into.

        Raises:
            UserError: there is no image where one is needed.
        """
        examples = [encoded for _, encoded in self.examples.items()]
        found = choose_geometry(examples, settings.image_size, settings.color_mode, EXAMPLES)
        if found is None:
            first = f" (first: {self.problems[UNREADABLE][:300]})" if UNREADABLE in self.problems else ""
            raise UserError(
                f"None of the {self.rows:,} files of {settings.source} is an image that can be read{first}.",
                "Check that the source holds images (PNG, JPEG, WebP, …) and not something else.",
            )
        return found

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes the images to files in `folder`, and returns the rest."""
        places = []
        for number, (place, encoded) in enumerate(self.examples.items()):
            (folder / f"{number}").write_bytes(encoded)
            places.append(place)
        return {"rows": self.rows, "labels": sorted(self.labels), "problems": self.problems, "places": places}

    @classmethod
    def read(cls, folder: Path, said: Mapping[str, Any]) -> Survey:
        """What `save` wrote."""
        found = cls(said["rows"], set(said["labels"]), said["problems"])
        for number, place in enumerate(said["places"]):
            found.examples.add(place, (folder / f"{number}").read_bytes())
        return found

    @classmethod
    def joined(cls, surveys: Sequence[Survey]) -> Survey:
        """What all of some surveys have found."""
        whole = cls(sum(found.rows for found in surveys), set().union(*(found.labels for found in surveys)))
        for found in surveys:
            whole.problems.update({**found.problems, **whole.problems})
            for place, encoded in found.examples.items():
                whole.examples.add(place, encoded)
        return whole


def survey(
    records: Callable[[SourceFiles, Meter], Iterator[Record]],
    source: SourceFiles,
    settings: PrepareSettings,
    check: Callable[[], None] = lambda: None,
    *,
    has_classes: bool,
) -> Survey:
    """Reads a source once; of images in files of their own only some.

    Args:
        records: reads files.
        source: the files.
        settings: the columns, and what is left open of `image_size` and `color_mode`.
        check: is called again and again; ends it by raising.
        has_classes: whether the labels are names of classes, each of which is to be known.

    Raises:
        UserError: the source cannot be read.
    """
    meter = Meter(source)
    progress = Progress("looking through", meter)
    found = Survey()
    is_open = not settings.image_size or settings.color_mode == "auto"
    for record in records(source, meter):
        check()
        progress.advance()
        found.rows += 1
        if record.problem:
            found.problems.setdefault(record.problem.reason, f"{record.source}: {record.problem.detail}")
            continue
        if has_classes:
            found.labels.add(record.label)
        if is_open and (why := found.examples.offer(record)):
            found.problems.setdefault(UNREADABLE, f"{record.source}: {why}")
    return found

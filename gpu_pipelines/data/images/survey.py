"""The first pass over images: which classes there are, and what size and colours the images have."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.image_features import (
    ImageGeometry,
    UnreadableImageError,
    choose_geometry,
    open_image,
    shorter_side,
)
from gpu_pipelines.data import preparation
from gpu_pipelines.data.images.sources import Record
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.splits.content_split import content_number
from gpu_pipelines.data.usable import require_rows
from gpu_pipelines.errors import UserError

EXAMPLES = 200
#: How many times smaller images may become without a warning.
MUCH_SMALLER = 2
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
class Survey(preparation.Survey):
    """What the first pass over images finds: some of them, too."""

    examples: Examples = field(default_factory=Examples)

    def look_at(self, record: Record) -> None:
        """Takes an image as an example, if it is to be one, and note of one that cannot be read."""
        if why := self.examples.offer(record):
            self.problems.setdefault(UNREADABLE, f"{record.source}: {why}")

    def geometry(self, settings: PrepareSettings) -> ImageGeometry:
        """What the images are turned into.

        Raises:
            UserError: there is no image where one is needed.
        """
        examples = [encoded for _, encoded in self.examples.items()]
        found = choose_geometry(examples, settings.image_size, settings.color_mode, EXAMPLES)
        if found is not None and settings.image_processor and not settings.image_size:
            # transformers takes a second to import, and nothing else here needs it.
            from gpu_pipelines.tasks.image_preprocessor import geometry_for

            found = geometry_for(settings.image_processor, found.mode) or found
        if found is None:
            if UNREADABLE not in self.problems:  # no image was looked at
                require_rows(self.problems, settings)
            first = f" (first: {self.problems[UNREADABLE][:300]})" if UNREADABLE in self.problems else ""
            raise UserError(
                f"None of the {self.rows:,} files of {settings.source} is an image that can be read{first}.",
                "Check that the source holds images (PNG, JPEG, WebP, …) and not something else.",
            )
        return found

    def told(self, geometry: ImageGeometry) -> str:
        """What becomes of the images, in a line: a warning where much of them is lost."""
        side = shorter_side(encoded for _, encoded in self.examples.items())
        how = f"{geometry.size} × {geometry.size} pixels, {'grey' if geometry.mode == 'L' else 'in colour'}"
        if geometry.resized:
            how = f"{how}: the middle of {geometry.resized} pixels{' of the shorter side' * geometry.keeps_aspect}"
        if side is None:
            return f"images become {how}"
        if side > MUCH_SMALLER * geometry.size:
            return (
                f"warning: images become {how}; half of their shorter sides have {side:g} pixels or more. Give "
                "image_size for larger ones."
            )
        return f"images become {how}; half of their shorter sides have {side:g} pixels or more"

    def save(self, folder: Path) -> dict[str, Any]:
        places = []
        for number, (place, encoded) in enumerate(self.examples.items()):
            (folder / f"{number}").write_bytes(encoded)
            places.append(place)
        return {**super().save(folder), "places": places}

    def add(self, folder: Path, said: Mapping[str, Any]) -> None:
        super().add(folder, said)
        for number, place in enumerate(said["places"]):
            self.examples.add(place, (folder / f"{number}").read_bytes())

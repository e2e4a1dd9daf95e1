"""Serves image classification: encoded images in base64, prepared as `prepare_data` prepares them."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from gpu_pipelines.artifacts.image_features import ImageGeometry, UnreadableImageError, decode, open_image
from gpu_pipelines.errors import UserError
from gpu_pipelines.serving.preparation import Pending
from gpu_pipelines.serving.request_body import WrongRequest, field_of
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.classification.predictions import ClassPredictor
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification
from gpu_pipelines.tasks.image_preprocessor import PREPROCESSOR, exported_preprocessor, geometry_in, mode_of

_EXAMPLE = '{"b64": "…"} with a PNG, JPEG or other image, in base64'


class _Row(NamedTuple):
    pixels: np.ndarray
    top_k: int


class ImageClassifier(ClassPredictor):
    """A classifier of images; see `Predictor`.

    Args:
        directory: the exported model.
        settings: limits of images.
        device: where the model goes.

    Raises:
        UserError: it wants its images prepared in another way than this project's.
    """

    field = "b64"

    def __init__(self, directory: Path, settings: ServerSettings, device: torch.device) -> None:
        self.device = device
        self._geometry = _geometry_of(directory)
        self._recipe = ImageClassification.for_exported(directory)
        self.labels = list(self._recipe.labels)
        self._model = self._recipe.load_exported(directory).to(device).eval()
        self._max_pixels = settings.max_pixels
        picture = io.BytesIO()
        Image.new(self._geometry.mode, (self._geometry.size,) * 2).save(picture, "PNG")
        self.example = {"b64": base64.b64encode(picture.getvalue()).decode()}

    def read(self, instance: Any, parameters: int) -> Pending:
        text = field_of(instance, "b64", _EXAMPLE)
        try:
            encoded = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise WrongRequest(f"b64 is not base64: {error}. Send {_EXAMPLE}.") from None
        return self.pending_of(encoded, parameters)

    def pending_of(self, value: bytes, parameters: int) -> Pending:
        encoded = value
        try:
            image = open_image(encoded)
            if image.width * image.height > self._max_pixels:
                size = f"{image.width} × {image.height} pixels"
                raise WrongRequest(f"b64 is an image of {size}; send at most {self._max_pixels:,} pixels.")
        except UnreadableImageError as error:
            raise _unreadable(error) from None
        return Pending(image.width * image.height, lambda: self._decoded(encoded, parameters))

    def _decoded(self, encoded: bytes, parameters: int) -> _Row:
        try:
            return _Row(decode(encoded, self._geometry), parameters)
        except UnreadableImageError as error:
            raise _unreadable(error) from None

    def columns(self, rows: Sequence[_Row]) -> dict[str, np.ndarray]:
        """The rows of requests as those of a dataset."""
        pixels = np.stack([row.pixels for row in rows])
        return {"image": pixels, "label": np.zeros(len(rows), dtype=np.int32)}

    def rows_of_dataset(self, columns: Mapping[str, np.ndarray]) -> list[Any]:
        return [_Row(pixels, len(self.labels)) for pixels in columns["image"]]


def _unreadable(error: UnreadableImageError) -> WrongRequest:
    return WrongRequest(f"b64 is not a readable image: {error}. Send {_EXAMPLE}.")


def _geometry_of(directory: Path) -> ImageGeometry:
    """How images are prepared, where `prepare_data` can do it; whatever differs would be served wrong."""
    said = exported_preprocessor(directory)
    if geometry := geometry_in(said, mode_of(said)):
        return geometry
    raise UserError(
        f"{directory}/{PREPROCESSOR} does not prepare images in the way of prepare_data.",
        "Serve it with Hugging Face's inference container.",
    )

"""From encoded images to fixed-size uint8 arrays, as Hugging Face's ViTImageProcessor makes them before scaling."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

GREY_MODES = {"1", "L", "LA", "I", "I;16", "F"}
# Larger images than this are resized by default; on a GPU give image_size=224 or more.
LARGEST_CHOSEN_SIZE = 64


class UnreadableImageError(Exception):
    """Bytes that are not an image Pillow can decode."""


@dataclass(frozen=True)
class ImageGeometry:
    """What every image of a dataset is turned into: `size` × `size` pixels in `mode` ("L" or "RGB")."""

    size: int
    mode: str

    @property
    def channels(self) -> int:
        return 1 if self.mode == "L" else 3

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return (self.channels, self.size, self.size)

    def preprocessing(self) -> dict[str, Any]:
        """The same in the terms of a Hugging Face `preprocessor_config.json`."""
        return {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": self.size, "width": self.size},
            "resample": int(Image.Resampling.BILINEAR),
            "do_convert_rgb": self.mode == "RGB",
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [0.5] * self.channels,
            "image_std": [0.5] * self.channels,
        }


def open_image(encoded: bytes) -> Image.Image:
    """Opens an image without decoding its pixels.

    Raises:
        UnreadableImageError: the bytes are no image, or one so large that it looks like a decompression bomb.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(io.BytesIO(encoded))
    except UnidentifiedImageError:
        raise UnreadableImageError("not an image that Pillow knows" if encoded else "the file is empty") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UnreadableImageError(str(error)) from None


def choose_geometry(examples: Iterable[bytes], size: int = 0, mode: str = "auto") -> ImageGeometry | None:
    """Chooses what is left open from some encoded images.

    Args:
        examples: encoded images; unreadable ones are passed over.
        size: pixels per side; 0 takes the median of the shorter sides, in steps of 8, from 8 to
            `LARGEST_CHOSEN_SIZE`.
        mode: "L", "RGB", or "auto": grey if all examples are.

    Returns:
        The geometry, or None if something was left open and no example could be read.
    """
    if size and mode != "auto":
        return ImageGeometry(size, mode)
    opened = []
    for encoded in examples:
        try:
            opened.append(open_image(encoded))
        except UnreadableImageError:
            continue
    if not opened:
        return None
    median = float(np.median([min(image.size) for image in opened]))
    chosen_size = size or int(np.clip(8 * round(median / 8), 8, LARGEST_CHOSEN_SIZE))
    grey = all(image.mode in GREY_MODES for image in opened)
    return ImageGeometry(chosen_size, mode if mode != "auto" else ("L" if grey else "RGB"))


def decode(encoded: bytes, geometry: ImageGeometry) -> np.ndarray:
    """Decodes, turns upright by its EXIF tag, converts and resizes an image (bilinear, aspect not kept).

    Returns:
        uint8 array of shape (channels, height, width).

    Raises:
        UnreadableImageError: the bytes are no image or a damaged one.
    """
    image = open_image(encoded)
    try:
        # JPEG only: decodes at a fraction of the size where that is still at least twice what is wanted.
        image.draft(geometry.mode, (2 * geometry.size, 2 * geometry.size))
        upright = ImageOps.exif_transpose(image)
        converted = _to_mode(upright, geometry.mode)
        if converted.size != (geometry.size, geometry.size):
            converted = converted.resize((geometry.size, geometry.size), Image.Resampling.BILINEAR)
        pixels = np.asarray(converted, dtype=np.uint8)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UnreadableImageError(str(error)) from None
    return pixels[None] if geometry.mode == "L" else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _to_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        # Pillow clips 16-bit grey to 255 instead of scaling it; medical and depth images would come out white.
        values = np.asarray(image, dtype=np.float64)
        top = 65535.0 if values.max(initial=0) > 255 else 255.0
        image = Image.fromarray(np.clip(values * (255.0 / top), 0, 255).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(mode)

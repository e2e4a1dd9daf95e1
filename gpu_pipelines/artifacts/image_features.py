"""From encoded images to fixed-size uint8 arrays, as Hugging Face's ViTImageProcessor makes them before scaling."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from PIL import ExifTags, Image, TiffImagePlugin, UnidentifiedImageError

from gpu_pipelines.errors import UserError
from gpu_pipelines.processors import own_cores

#: Formats that are read, in preparation and in serving. Pillow opens more, such as EPS by starting another program.
IMAGE_FORMATS = (
    "PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO", "DDS", "PCX", "TGA",
)  # fmt: skip
GREY_MODES = {"1", "L", "LA", "I", "I;16", "I;16L", "I;16B", "I;16N", "F"}
#: Default size to which larger images are resized: the side with which most image models are trained and published.
LARGEST_CHOSEN_SIZE = 224


class UnreadableImageError(Exception):
    """Bytes that are not an image Pillow can decode."""


@dataclass(frozen=True)
class ImageGeometry:
    """The target format of every image of a dataset.

    Attributes:
        size: pixels per side.
        mode: "L" or "RGB".
        resample: how it is resized, as Pillow's number.
        resized: pixels per side before the centre is cut out; 0 for `size`, with nothing cut off.
        keeps_aspect: whether that is the shorter side, and the longer one follows; else both, regardless of the aspect.
    """

    size: int
    mode: str
    resample: int = int(Image.Resampling.BILINEAR)
    resized: int = 0
    keeps_aspect: bool = False

    @property
    def channels(self) -> int:
        return 1 if self.mode == "L" else 3

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return (self.channels, self.size, self.size)

    def preprocessing(self) -> dict[str, Any]:
        """The geometry in the terms of a Hugging Face `preprocessor_config.json`."""
        side = self.resized or self.size
        size = {"shortest_edge": side} if self.keeps_aspect else {"height": side, "width": side}
        crop = {"do_center_crop": True, "crop_size": {"height": self.size, "width": self.size}}
        return {
            "image_processor_type": "CLIPImageProcessor" if self.resized else "ViTImageProcessor",
            "do_resize": True,
            "size": size,
            **(crop if self.resized else {}),
            "resample": self.resample,
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
        UnreadableImageError: the bytes are not an image, or one so large that it looks like a decompression bomb.
    """
    if not encoded:
        raise UnreadableImageError("the file is empty")
    try:
        image = Image.open(io.BytesIO(encoded), formats=IMAGE_FORMATS)
    except UnidentifiedImageError:
        raise UnreadableImageError(_why_unknown(encoded)) from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged bytes.
        raise UnreadableImageError(str(error) or type(error).__name__) from None
    # Pillow only warns up to twice its limit; turning the warning into an error would not be safe in threads.
    if image.width * image.height > (Image.MAX_IMAGE_PIXELS or np.inf):
        raise UnreadableImageError(f"{image.width} × {image.height} pixels look like a decompression bomb")
    return image


def _why_unknown(encoded: bytes) -> str:
    Image.init()
    for name, (_, accept) in Image.OPEN.items():
        # By the first bytes alone, as Pillow chooses the decoder; there may be too few for some.
        with suppress(Exception):
            if name not in IMAGE_FORMATS and accept and accept(encoded[:16]) is True:
                return f"an image in the format {name}; those that are read are {', '.join(IMAGE_FORMATS)}"
    return "not an image that Pillow knows"


def choose_geometry(
    examples: Iterable[bytes], size: int = 0, mode: str = "auto", enough: int = 200
) -> ImageGeometry | None:
    """Chooses from some encoded images what is left open.

    Args:
        examples: encoded images; unreadable ones are passed over.
        size: pixels per side; 0 takes the median of the shorter sides, in steps of 8, from 8 to
            `LARGEST_CHOSEN_SIZE`.
        mode: "L", "RGB", or "auto": grey if all examples are.
        enough: readable examples after which no more are taken.

    Returns:
        The geometry, or None if something was left open and no example could be read.
    """
    if size and mode != "auto":
        return ImageGeometry(size, mode)
    opened = _opened(examples, enough)
    if not opened:
        return None
    median = _shorter_side(opened)
    chosen_size = size or int(np.clip(8 * round(median / 8), 8, LARGEST_CHOSEN_SIZE))
    grey = all(image.mode in GREY_MODES for image in opened)
    return ImageGeometry(chosen_size, mode if mode != "auto" else ("L" if grey else "RGB"))


def shorter_side(examples: Iterable[bytes]) -> float | None:
    """The median of the shorter sides of encoded images, pixels; None if none can be read."""
    opened = _opened(examples)
    return _shorter_side(opened) if opened else None


def _opened(examples: Iterable[bytes], enough: int = 200) -> list[Image.Image]:
    opened: list[Image.Image] = []
    for encoded in examples:
        with suppress(UnreadableImageError):
            opened.append(open_image(encoded))
        if len(opened) >= enough:
            break
    return opened


def _shorter_side(opened: list[Image.Image]) -> float:
    return float(np.median([min(image.size) for image in opened]))


def decode(encoded: bytes, geometry: ImageGeometry) -> np.ndarray:
    """Decodes, converts, resizes as the geometry says, and turns upright by its EXIF tag.

    Returns:
        uint8 array of shape (channels, height, width).

    Raises:
        UnreadableImageError: the bytes are not an image, or a damaged one.
    """
    image = open_image(encoded)
    side = geometry.resized or geometry.size
    try:
        # JPEG only: decodes at a fraction of the size if that is still at least twice the wanted one. The fraction of
        # an odd size is rounded up, so the picture is only the box of it that draft returns.
        drafted = image.draft(geometry.mode, (2 * side, 2 * side))
        image.load()  # of a TIFF this turns the picture and removes the tag
        turn = _TURNS.get(_orientation(image))
        whole = drafted[1] if drafted else (0, 0, *image.size)
        resized = _to_mode(image, geometry.mode).resize(
            (geometry.size,) * 2, Image.Resampling(geometry.resample), box=_taken_part(whole, geometry)
        )
        pixels = np.asarray(resized.transpose(turn) if turn is not None else resized, dtype=np.uint8)
    except UnreadableImageError:
        raise
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged bytes.
        raise UnreadableImageError(str(error) or type(error).__name__) from None
    return pixels[None] if geometry.mode == "L" else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def smaller_file(encoded: bytes, pixels: np.ndarray) -> bytes:
    """The file of an image to keep: its own, or a PNG of its decoded pixels if that takes fewer bytes.

    `decode` makes the same pixels from both.

    Args:
        encoded: the image's file.
        pixels: the result of `decode`.
    """
    if len(encoded) <= pixels.nbytes:
        return encoded
    file = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(file, "PNG")
    return file.getvalue()


def decode_all(files: Sequence[bytes], geometry: Mapping[str, Any]) -> np.ndarray:
    """Decodes images on this process's share of the cores.

    Args:
        files: of the images.
        geometry: the fields of an `ImageGeometry`.

    Returns:
        uint8 array of shape (images, channels, height, width).

    Raises:
        UserError: one cannot be decoded.
    """
    wanted = ImageGeometry(**geometry)
    pixels = np.empty((len(files), *wanted.shape), dtype=np.uint8)
    try:
        for place, image in enumerate(_decoders().map(partial(decode, geometry=wanted), files)):
            pixels[place] = image
    except UnreadableImageError as error:
        raise UserError(
            f"An image of the dataset cannot be decoded: {error}.", "Prepare the dataset again with this release."
        ) from None
    return pixels


@cache
def _decoders() -> ThreadPoolExecutor:
    """Threads for this process; there may be one process for each GPU. Pillow releases the interpreter's lock."""
    return ThreadPoolExecutor(own_cores(), thread_name_prefix="decoding")


def _taken_part(whole: tuple[float, ...], geometry: ImageGeometry) -> tuple[float, float, float, float]:
    """The part of a picture that is resized: all of it, or the middle that remains after resizing and cutting.

    Only that part is resized, so that a picture of one row of pixels does not become a giant one in between. Sides
    are rounded as transformers rounds them.
    """
    width, height = whole[2:]
    if not geometry.resized:
        return 0, 0, width, height
    wide, high = geometry.resized, geometry.resized
    if geometry.keeps_aspect:
        longer = int(geometry.resized * max(width, height) / min(width, height))
        wide, high = (wide, longer) if width <= height else (longer, high)
    left, top = (wide - geometry.size) // 2, (high - geometry.size) // 2
    across, down = width / wide, height / high
    return left * across, top * down, (left + geometry.size) * across, (top + geometry.size) * down


# The transposition that turns a picture upright, by EXIF orientation. Source: Exif 2.32, section 4.6.4, tag 274.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # A picture with a damaged tag is still usable.
        return 1


_TIFF_BITS = 258  # BitsPerSample, TIFF 6.0, section 8


def _white(image: Image.Image, values: np.ndarray) -> float:
    """The value of white in grey of more than 8 bits; black is 0.

    With 12 and 16 bits it is the largest possible value. Values of 32 bits do not say what white is: fractions up to 1
    are shares of it, as in scikit-image and torchvision, and fractions up to 255 are those of 8 bits; whole numbers up
    to 255 are those of 8 bits, and up to 65,535 those of 16 bits.

    Raises:
        UnreadableImageError: there are other values, so that white is not known.
    """
    whites: tuple[int, ...] = (65535,)  # Pillow makes this of other formats, of PGM with 10 bits for one
    if image.mode == "F":
        whites = (1, 255)
    elif isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = image.tag_v2.get(_TIFF_BITS, (16,))[0]
        has_sign = image.mode == "I"
        whites = (255, 65535) if bits > 16 else (2 ** (bits - has_sign) - 1,)
    low, high = float(values.min()), float(values.max())
    for white in whites:
        if low >= 0 and high <= white:
            return float(white)
    known = " or ".join(f"0 to {white:,}" for white in whites)
    raise UnreadableImageError(
        f"its values go from {low:g} to {high:g}, and white is defined only for {known}; save it with 8 or 16 bits"
    )


def _to_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        # Pillow clips deep grey to 255 instead of scaling it; medical and depth images would come out white.
        values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
        image = Image.fromarray(np.rint(values * (255 / _white(image, values))).astype(np.uint8))
    if image.has_transparency_data:
        # Onto white, as Hugging Face's processors do; a black drawing on nothing would come out all black.
        drawn = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", drawn.size, (255, 255, 255, 255)), drawn)
    return image if image.mode == mode else image.convert(mode)  # convert would copy it

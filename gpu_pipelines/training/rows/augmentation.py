"""Augmentation of images in each epoch: mirrored, cropped, turned, recoloured."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch.nn.functional import interpolate

from gpu_pipelines.processors import own_cores

#: Random numbers of a row: mirrored; area, shape, left and top of the part; then operation and sign of each change.
MIRRORED, AREA, ASPECT, LEFT, TOP, CHANGES = range(6)
#: Sides of the images, pixels, up to which a part is the image moved by some pixels, and above which it is resized.
LARGEST_MOVED = 64
#: Of such a side, by how much it is moved at most. Source: He et al., https://arxiv.org/abs/1512.03385, section 4.2: 4
#: pixels of 32.
MOVED = 1 / 8
#: Least share of the area of a larger image, and the narrowest shape. Source of the rule and of the shape: Szegedy et
#: al., https://arxiv.org/abs/1409.4842, section 6; their 8% are for trainings of hundreds of epochs.
LEAST_AREA, NARROWEST = 0.25, 3 / 4
#: Changes of an image, and their size as a share of the largest. Source: Cubuk et al., RandAugment,
#: https://arxiv.org/abs/1909.13719, table 4: two of size 9, of 30.
CHANGES_OF_AN_IMAGE, MAGNITUDE = 2, 9 / 30
RANDOM_NUMBERS = CHANGES + 2 * CHANGES_OF_AN_IMAGE
_GREY = 128
_MOST_THREADS = 8

Change = Callable[[Image.Image, float], Image.Image]


class Augmentation:
    """Changes a batch of images by given random numbers, so that the change of a row depends only on them.

    Args:
        kind: flip, crop-flip or randaugment.
    """

    def __init__(self, kind: str) -> None:
        self._crops = kind != "flip"
        threads = min(_MOST_THREADS, own_cores())
        self._threads = ThreadPoolExecutor(threads, "augmentation") if kind == "randaugment" else None

    def changed(self, images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """The images, changed.

        Args:
            images: uint8 of shape (rows, channels, height, width); may be overwritten.
            numbers: from 0 to 1, of shape (rows, RANDOM_NUMBERS).
        """
        if self._crops:
            moved = max(images.shape[2:]) <= LARGEST_MOVED
            images = _moved(images, numbers) if moved else _resized_parts(images, numbers)
        mirrored = numbers[:, MIRRORED] < 0.5
        images[mirrored] = images[mirrored, :, :, ::-1]
        if self._threads is not None:
            images = np.stack(list(self._threads.map(_recoloured, images, numbers[:, CHANGES:])))
        return images


def _moved(images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Moved by some pixels; what comes in is the mirror image of what is there."""
    rows, _, height, width = images.shape
    up, left = (round(side * MOVED) for side in (height, width))
    padded = np.pad(images, ((0, 0), (0, 0), (up, up), (left, left)), mode="reflect")
    tops = (numbers[:, TOP] * (2 * up + 1)).astype(int)
    lefts = (numbers[:, LEFT] * (2 * left + 1)).astype(int)
    y, x = tops[:, None] + np.arange(height), lefts[:, None] + np.arange(width)
    taken = padded[np.arange(rows)[:, None, None], :, y[:, :, None], x[:, None, :]]
    return np.ascontiguousarray(taken.transpose(0, 3, 1, 2))


def _resized_parts(images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """A part of random area and shape, resized to the whole; each image for itself, whatever stands beside it."""
    height, width = images.shape[2:]
    found = torch.from_numpy(images)
    made = torch.empty_like(found)
    area = LEAST_AREA + (1 - LEAST_AREA) * numbers[:, AREA]
    shape = np.exp((2 * numbers[:, ASPECT] - 1) * -math.log(NARROWEST))
    heights = np.clip(np.rint(height * np.sqrt(area / shape)), 1, height).astype(int)
    widths = np.clip(np.rint(width * np.sqrt(area * shape)), 1, width).astype(int)
    tops = (numbers[:, TOP] * (height - heights + 1)).astype(int)
    lefts = (numbers[:, LEFT] * (width - widths + 1)).astype(int)
    for row, (top, left, high, wide) in enumerate(zip(tops, lefts, heights, widths, strict=True)):
        part = found[row : row + 1, :, top : top + high, left : left + wide]
        made[row : row + 1] = interpolate(part, (height, width), mode="bilinear", antialias=True)
    return made.numpy()


def _recoloured(image: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """An image of shape (channels, height, width) after its changes."""
    is_grey = image.shape[0] == 1
    made = Image.fromarray(image[0] if is_grey else np.ascontiguousarray(image.transpose(1, 2, 0)))
    for which, sign in numbers.reshape(-1, 2):
        change = _OPERATIONS[int(which * len(_OPERATIONS))]
        made = change(made, MAGNITUDE if sign < 0.5 else -MAGNITUDE)
    pixels = np.asarray(made)
    return pixels[None] if is_grey else pixels.transpose(2, 0, 1)


def _affine(of: Callable[[int, int, float], tuple[float, ...]]) -> Change:
    def change(image: Image.Image, size: float) -> Image.Image:
        fill = _GREY if image.mode == "L" else (_GREY,) * 3
        matrix = of(*image.size, size)
        return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=fill)

    return change


def _turned(image: Image.Image, size: float) -> Image.Image:
    fill = _GREY if image.mode == "L" else (_GREY,) * 3
    return image.rotate(30 * size, Image.Resampling.BILINEAR, fillcolor=fill)


def _enhanced(by: type[ImageEnhance.Color | ImageEnhance.Contrast | ImageEnhance.Brightness]) -> Change:
    return lambda image, size: by(image).enhance(1 + size)


#: At magnitude 1: 30 degrees, shears of 0.3, moves of 0.45 of a side, 4 bits fewer, and enhancements by 0 to 2.
_OPERATIONS: tuple[Change, ...] = (
    lambda image, _: image,
    lambda image, _: ImageOps.autocontrast(image),
    lambda image, _: ImageOps.equalize(image),
    _turned,
    lambda image, size: ImageOps.posterize(image, 8 - round(4 * abs(size))),
    lambda image, size: ImageOps.solarize(image, round(256 * (1 - abs(size)))),
    _enhanced(ImageEnhance.Color),
    _enhanced(ImageEnhance.Contrast),
    _enhanced(ImageEnhance.Brightness),
    _enhanced(ImageEnhance.Sharpness),  # type: ignore[arg-type]
    _affine(lambda width, height, size: (1, 0.3 * size, 0, 0, 1, 0)),
    _affine(lambda width, height, size: (1, 0, 0, 0.3 * size, 1, 0)),
    _affine(lambda width, height, size: (1, 0, 0.45 * size * width, 0, 1, 0)),
    _affine(lambda width, height, size: (1, 0, 0, 0, 1, 0.45 * size * height)),
)

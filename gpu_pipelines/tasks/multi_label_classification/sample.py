"""The sample of images of several classes."""

from __future__ import annotations

import json
from pathlib import Path

from gpu_pipelines.tasks.image_classification.sample import digits

#: Images, and the digits in one of them at most.
_IMAGES, _MOST = 2000, 3


def write_several_digits(folder: Path) -> Path:
    """Writes images of one to three handwritten digits beside each other, with the list of the digits in each.

    Source: as `write_digits` of image classification.

    Args:
        folder: gets the images, and `several_digits.jsonl`.

    Returns:
        The path to give as the source.
    """
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    pixels, names = digits()
    lines = []
    for number in range(_IMAGES):
        chosen = random.choice(len(pixels), random.integers(1, _MOST + 1), replace=False)
        image = np.zeros((16, 16), dtype=np.uint8)
        # Each in a quarter of the image.
        for place, digit in zip(random.choice(4, len(chosen), replace=False), chosen, strict=True):
            top, left = 8 * (place // 2), 8 * (place % 2)
            image[top : top + 8, left : left + 8] = pixels[digit]
        name = f"{number:04d}.png"
        Image.fromarray(image).save(folder / name)
        lines.append(json.dumps({"image": name, "label": sorted({str(names[digit]) for digit in chosen})}) + "\n")
    path = folder / "several_digits.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    return path

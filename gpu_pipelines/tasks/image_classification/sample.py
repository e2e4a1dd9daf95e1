"""The sample of images."""

from __future__ import annotations

from pathlib import Path


def write_digits(folder: Path) -> Path:
    """Writes the UCI handwritten digits (8 × 8 pixels, grey), which ship with scikit-learn, as PNG files by class.

    Source: https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits (test set, 1,797 images).
    """
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    for number, (image, label) in enumerate(zip(pixels, digits.target, strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path)
    return folder

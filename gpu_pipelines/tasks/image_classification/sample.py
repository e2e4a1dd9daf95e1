"""The sample of images."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def write_digits(folder: Path) -> Path:
    """Writes the UCI handwritten digits (8 × 8 pixels, grey), which ship with scikit-learn, as PNG files by class.

    Source: https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits (test set, 1,797 images).

    Args:
        folder: gets a folder for each class.

    Returns:
        The path to give as the source.
    """
    from PIL import Image

    for number, (image, label) in enumerate(zip(*digits(), strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path)
    return folder


def digits() -> tuple[np.ndarray, np.ndarray]:
    """The images, uint8 (rows, 8, 8), and the digit of each, int64 (rows,)."""
    import numpy as np

    # As load_digits reads it, whose import takes a second: 64 pixels from 0 to 16 in a row, and the digit.
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    rows = np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    pixels = np.rint(rows[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    return pixels, rows[:, -1].astype(int)

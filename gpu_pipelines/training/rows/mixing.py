"""Images that are mixed in pairs, and their classes with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_pipelines.tasks.recipe import OTHER_LABEL, OTHER_SHARE

#: Of the random numbers of a pair besides its two shares: which of the two ways, and the middle of the rectangle.
RANDOM_NUMBERS = 3


class Mixing:
    """Mixes each row of a batch with its neighbour: the first with the second, the third with the fourth.

    The rows are in random order, so neighbours are random pairs. The last row of an odd number stays alone.
    Sources: mixup, Zhang et al., https://arxiv.org/abs/1710.09412; CutMix, Yun et al.,
    https://arxiv.org/abs/1905.04899.

    Args:
        mixup_alpha: parameter of the beta distribution of the shares; 0 for none.
        cutmix_alpha: the same for the rectangle's area.
    """

    def __init__(self, mixup_alpha: float, cutmix_alpha: float) -> None:
        self._alphas = mixup_alpha, cutmix_alpha

    def shares(self, generator: np.random.Generator, rows: int) -> np.ndarray:
        """The random numbers of the pairs of that many rows: share of the other, is a rectangle, its middle (y, x)."""
        pairs = rows // 2
        mixed, cut = (generator.beta(alpha or 1.0, alpha or 1.0, pairs) for alpha in self._alphas)
        which, y, x = generator.random((RANDOM_NUMBERS, pairs))
        by_cut = np.full(pairs, self._alphas[1] > 0) if 0 in self._alphas else which < 0.5
        return np.stack([np.where(by_cut, cut, mixed), by_cut, y, x], axis=1)

    def mixed(self, columns: Mapping[str, Any], shares: np.ndarray) -> dict[str, Any]:
        """The columns with mixed images, and the columns about the other image.

        Args:
            columns: `image`, uint8 of shape (rows, channels, height, width), and `label`.
            shares: of the pairs, from `shares`.
        """
        images, labels = columns["image"], columns["label"]
        rows, even = len(labels), len(labels) // 2 * 2
        other = np.arange(rows)
        other[:even] ^= 1
        made, of_other = images.copy(), np.zeros(rows, dtype=np.float32)
        for pair, (share, is_cut, y, x) in enumerate(shares):
            here = slice(2 * pair, 2 * pair + 2)
            there = images[here][::-1]
            if is_cut:
                box = _rectangle(images.shape[2:], share, y, x)
                made[here, :, box[0], box[1]] = there[:, :, box[0], box[1]]
                share = made[0, 0, box[0], box[1]].size / made[0, 0].size
            else:
                made[here] = np.rint(images[here] * np.float32(1 - share) + there * np.float32(share))
            of_other[here] = share
        return {**columns, "image": made, OTHER_LABEL: labels[other], OTHER_SHARE: of_other}


def _rectangle(sides: tuple[int, ...], share: float, *middle: float) -> list[slice]:
    """A part of an image of a share of its area, as far as it lies within the image."""
    found = []
    for side, at in zip(sides, middle, strict=True):
        half, centre = side * np.sqrt(share) / 2, side * at
        found.append(slice(max(0, round(centre - half)), min(side, round(centre + half))))
    return found

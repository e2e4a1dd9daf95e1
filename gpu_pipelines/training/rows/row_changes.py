"""Changes of the rows of train before they become batches: a function of the seed, the step and the row's place.

So a training continues to the bit, and trains on the same images with any number of processes.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.recipe import Recipe
from gpu_pipelines.training.rows.augmentation import RANDOM_NUMBERS, Augmentation
from gpu_pipelines.training.rows.mixing import Mixing
from gpu_pipelines.training.settings import TrainingSettings

_IMAGE_DIMENSIONS, _CHANNELS = 3, (1, 3)
#: Parts of the seed, so that each has random numbers of its own, other than those of the order of the rows.
_OF_IMAGES, _OF_PAIRS = 1_000_001, 1_000_002


class RowChanges:
    """Changes this process's rows of each step.

    Args:
        settings: `augmentation`, `mixup_alpha`, `cutmix_alpha`, global batch size and seed.
        rank: this process.
        world_size: number of processes.
    """

    def __init__(self, settings: TrainingSettings, rank: int, world_size: int) -> None:
        share = settings.global_batch_size // world_size
        self._batch, self._own = settings.global_batch_size, slice(rank * share, (rank + 1) * share)
        self._seed = settings.seed
        self._augmentation = Augmentation(settings.augmentation) if settings.augmentation else None
        mixes = settings.mixup_alpha or settings.cutmix_alpha
        self._mixing = Mixing(settings.mixup_alpha, settings.cutmix_alpha) if mixes else None

    def of(self, columns: dict[str, Any], step: int) -> dict[str, Any]:
        """The changed rows.

        Args:
            columns: of this process's part of the batch; may be overwritten.
            step: from 0.
        """
        if self._augmentation is not None:
            numbers = self._generator(_OF_IMAGES, step).random((self._batch, RANDOM_NUMBERS))
            columns = {**columns, "image": self._augmentation.changed(columns["image"], numbers[self._own])}
        if self._mixing is not None:
            # Of an even number of rows, or of all.
            pairs = self._mixing.shares(self._generator(_OF_PAIRS, step), self._batch)
            columns = self._mixing.mixed(columns, pairs[self._own.start // 2 : self._own.stop // 2])
        return columns

    def _generator(self, part: int, step: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, part, step])


def adopt(recipe: Recipe, dataset: Dataset, settings: TrainingSettings) -> None:
    """Gives a recipe the parameters of its training.

    Raises:
        UserError: it does not use a parameter, or the rows are not images.
    """
    name = type(recipe).__name__
    if settings.label_smoothing and not recipe.smooths:
        raise UserError(
            f"label_smoothing is {settings.label_smoothing}, which the recipe {name} does not use.",
            "Give 0, or let its loss take smoothing_of(model), and set `smooths = True`.",
        )
    mixes = settings.mixup_alpha or settings.cutmix_alpha
    if mixes and not recipe.mixes:
        raise UserError(
            f"mixup_alpha is {settings.mixup_alpha} and cutmix_alpha {settings.cutmix_alpha}, which the recipe {name} "
            "does not use.",
            "Give 0, or let its batch and loss take OTHER_LABEL and OTHER_SHARE, and set `mixes = True`.",
        )
    if (settings.augmentation or mixes) and not _has_images(dataset):
        raise UserError(
            f"augmentation, mixup_alpha and cutmix_alpha change images, and the dataset {dataset.directory} has none.",
            "Leave them at their defaults.",
        )
    recipe.label_smoothing = settings.label_smoothing
    recipe.attention = settings.attention
    recipe.trained_with(asdict(settings))


def _has_images(dataset: Dataset) -> bool:
    image = dataset.manifest.features.get("image")
    if image is None or image.dtype != "uint8":
        return False
    return len(image.shape) == _IMAGE_DIMENSIONS and image.shape[0] in _CHANNELS

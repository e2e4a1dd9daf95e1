"""The recipe for images or texts inside another recipe, which learns something other than one class of each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification
from gpu_pipelines.tasks.recipe import Batch, Recipe
from gpu_pipelines.tasks.text_classification.recipe import TextClassification
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer


class OuterRecipe(Recipe):
    """A recipe with one of images or texts within it.

    Attributes:
        inner: makes models and batches; None if the rows are neither.
    """

    inner: Any

    @property
    def tokenizer(self) -> TextTokenizer | None:
        """The tokenizer of the rows, if they are texts."""
        return getattr(self.inner, "tokenizer", None)

    @property
    def sequence_length(self) -> int | None:
        """Tokens of a row, of texts."""
        return getattr(self.inner, "sequence_length", None)


def inner_recipe(dataset: Dataset, outputs: Sequence[str], own: str) -> Any:
    """The classifier's recipe for a dataset of images or texts; None if its rows are neither.

    Args:
        dataset: to learn from.
        outputs: names of the model's outputs, instead of classes.
        own: the entry of `preprocessing` that is not of the images.
    """
    manifest = dataset.manifest
    if image := manifest.features.get("image"):
        said = {name: value for name, value in manifest.preprocessing.items() if name != own}
        return ImageClassification(list(outputs), said, image.shape)
    if dataset.tokenizer:
        tokenizer = TextTokenizer.read(dataset.tokenizer)
        return TextClassification(list(outputs), tokenizer, manifest.features["input_ids"].shape[0])
    return None


def inputs_in(inner: Any, columns: dict[str, np.ndarray], device: torch.device) -> Batch:
    """The inputs of a model of images or texts, without the targets.

    Args:
        inner: the recipe of the classifier.
        columns: rows of a dataset.
        device: where the tensors go.
    """
    rows = len(next(iter(columns.values())))
    found: Batch = inner.batch({**columns, "label": np.zeros(rows, np.int32)}, device)
    del found["labels"]
    return found

"""A model of images that takes next to no time, for benchmarks of reading."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from gpu_pipelines.tasks.image_classification.recipe import ImageClassification


class Linear(nn.Module):
    """One matrix from the pixels to the classes, with the interface of transformers' models."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, classes)

    def forward(self, pixel_values: torch.Tensor) -> Any:
        return SimpleNamespace(logits=self.head(pixel_values.flatten(1)))


class LinearImages(ImageClassification):
    """Image classification with `Linear`, whatever model is requested."""

    def build_model(self, name: str) -> nn.Module:
        size = self.image_shape[0] * self.image_shape[1] * self.image_shape[2]
        return Linear(size, len(self.labels))

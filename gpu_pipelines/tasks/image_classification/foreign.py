"""Models of images that this project did not train: they take images in another size, and normalised otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

PREPROCESSOR = "preprocessor_config.json"


def normalised(directory: Path, model: nn.Module) -> nn.Module:
    """A model as it takes images that are scaled to [-1, 1], by its preprocessor_config.json."""
    preprocessor = _preprocessor(directory)
    if not preprocessor.get("do_normalize", True):
        return _Normalised(model, [0.0], [1.0])
    return _Normalised(model, preprocessor.get("image_mean") or [0.5], preprocessor.get("image_std") or [0.5])


def shape_of_images(directory: Path, config: Any, usual: tuple[int, ...]) -> tuple[int, ...]:
    """Channels, height and width of the images that a model takes.

    Args:
        directory: of the model.
        config: its configuration.
        usual: what is taken where it says nothing.
    """
    channels = getattr(config, "num_channels", None) or usual[0]
    size = getattr(config, "image_size", None)
    sides = tuple(size) if isinstance(size, (list, tuple)) else (size, size) if size else _size(directory)
    return (channels, *(sides or usual[1:]))


class _Normalised(nn.Module):
    """Takes images scaled to [-1, 1], and gives them to a model in the mean and deviation that it was trained with."""

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, model: nn.Module, mean: list[float], deviation: list[float]) -> None:
        super().__init__()
        self.inner = model
        shape = (1, len(mean), 1, 1)
        self.register_buffer("mean", torch.tensor(mean).view(shape), persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation).view(shape), persistent=False)

    def forward(self, pixel_values: torch.Tensor) -> Any:
        return self.inner(pixel_values=((pixel_values + 1) / 2 - self.mean) / self.deviation)


def _preprocessor(directory: Path) -> dict[str, Any]:
    path = directory / PREPROCESSOR
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _size(directory: Path) -> tuple[int, int] | None:
    preprocessor = _preprocessor(directory)
    size = preprocessor.get("crop_size") if preprocessor.get("do_center_crop") else preprocessor.get("size")
    if isinstance(size, dict) and {"height", "width"} <= size.keys():
        return size["height"], size["width"]
    return (size, size) if isinstance(size, int) else None

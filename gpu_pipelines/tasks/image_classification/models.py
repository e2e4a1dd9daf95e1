"""The image models that are built from their name, and those that this project did not train.

Of the built ones only the family's own module is imported: the package's index of all architectures takes seconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpu_pipelines.errors import UserError

# The grid a small model sees: patches are sized so that an image becomes about this many per side.
PATCHES_PER_SIDE = 8
PREPROCESSOR = "preprocessor_config.json"


def image_classifier(name: str, shared: dict[str, Any], size: int) -> nn.Module:
    """Builds an image classifier.

    Args:
        name: a family and a scale, such as `vit-micro`; one of those that the task lists.
        shared: entries of the configuration that follow from the data: channels and classes.
        size: pixels per side of an image.

    Raises:
        UserError: images of this size do not fit.
    """
    family, _, scale = name.partition("-")
    build = {"convnext": _convnext, "resnet": _resnet, "swin": _swin, "vit": _vit}[family]
    return build(name, scale == "micro", shared, size)


def _convnext(name: str, micro: bool, shared: dict[str, Any], size: int) -> nn.Module:
    from transformers.models.convnext import ConvNextConfig, ConvNextForImageClassification

    small = {"num_stages": 2, "hidden_sizes": [32, 64], "depths": [2, 2], "layer_scale_init_value": 1.0}
    shape = {**small, "patch_size": max(1, size // PATCHES_PER_SIDE)} if micro else {}
    return ConvNextForImageClassification(ConvNextConfig(image_size=size, **shape, **shared))


def _resnet(name: str, micro: bool, shared: dict[str, Any], size: int) -> nn.Module:
    from transformers.models.resnet import ResNetConfig, ResNetForImageClassification

    shape = {"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 2], "layer_type": "basic"}
    return ResNetForImageClassification(ResNetConfig(**shape, **shared))


def _swin(name: str, micro: bool, shared: dict[str, Any], size: int) -> nn.Module:
    from transformers.models.swin import SwinConfig, SwinForImageClassification

    # The second stage halves the grid, and a grid smaller than the window fails inside transformers.
    divisors = [d for d in range(1, size + 1) if size % d == 0 and size // d >= PATCHES_PER_SIDE]
    patch = max(divisors, default=size) if micro else 4
    if size % patch or size // patch < PATCHES_PER_SIDE:
        raise _needs_multiple_of(patch if size % patch else PATCHES_PER_SIDE, name, size)
    small = {"embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "mlp_ratio": 2.0}
    # The defaults are microsoft/swin-tiny-patch4-window7-224.
    config = SwinConfig(image_size=size, patch_size=patch, **(small if micro else {}), **shared)
    return SwinForImageClassification(config)


def _vit(name: str, micro: bool, shared: dict[str, Any], size: int) -> nn.Module:
    from transformers.models.vit import ViTConfig, ViTForImageClassification

    patch = _divisor_near(size, size / PATCHES_PER_SIDE) if micro else 16
    if size % patch:
        raise _needs_multiple_of(patch, name, size)
    small = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
    config = ViTConfig(image_size=size, patch_size=patch, **(small if micro else {}), **shared)
    return ViTForImageClassification(config)


def _needs_multiple_of(patch: int, name: str, size: int) -> UserError:
    return UserError(f"The model {name} needs an image_size that is a multiple of {patch}; it is {size}.")


def _divisor_near(size: int, wanted: float) -> int:
    return min((d for d in range(1, size + 1) if size % d == 0), key=lambda d: (abs(d - max(wanted, 2)), d))


def normalised(directory: Path, model: nn.Module) -> nn.Module:
    """A model of another program as it takes images that are scaled to [-1, 1], by its preprocessor_config.json."""
    preprocessor = _preprocessor(directory)
    if not preprocessor.get("do_normalize", True):
        return _Normalised(model, [0.0], [1.0])
    return _Normalised(model, preprocessor.get("image_mean") or [0.5], preprocessor.get("image_std") or [0.5])


def shape_of_images(directory: Path, config: Any, usual: tuple[int, ...]) -> tuple[int, ...]:
    """Channels, height and width of the images that a model of another program takes.

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

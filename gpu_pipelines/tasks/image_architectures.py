"""The image models that are built from their name, untrained.

Only the family's own module is imported: the package's index of all architectures takes seconds.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from gpu_pipelines.errors import UserError

# The grid a small model sees: patches are sized so that an image becomes about this many per side.
PATCHES_PER_SIDE = 8


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

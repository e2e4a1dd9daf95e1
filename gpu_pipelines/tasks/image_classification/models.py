"""The image models that are built from their name, and those that this project did not train.

Of the built ones only the family's own module is imported: the package's index of all architectures takes seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.image_preprocessor import exported_preprocessor, geometry_in

# The grid a small model sees: patches are sized so that an image becomes about this many per side.
PATCHES_PER_SIDE = 8
#: Shares of red, green and blue in grey, as Pillow and prepare_data take them. Source: ITU-R BT.601-7, section 2.5.1.
LUMA = (0.299, 0.587, 0.114)


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
    patch = max(divisors, default=1) if micro else 4
    small = {"embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "mlp_ratio": 2.0}
    # The defaults are microsoft/swin-tiny-patch4-window7-224.
    config = SwinConfig(image_size=size, patch_size=patch, **(small if micro else {}), **shared)
    # Each stage after the first halves the grid of patches and rounds up; the last one has to hold a window.
    least = patch * ((config.window_size - 1) * 2 ** (len(config.depths) - 1) + 1)
    if size < least:
        raise UserError(f"The model {name} needs an image_size of at least {least}; it is {size}.")
    return SwinForImageClassification(config)


def _vit(name: str, micro: bool, shared: dict[str, Any], size: int) -> nn.Module:
    from transformers.models.vit import ViTConfig, ViTForImageClassification

    patch = _divisor_near(size, size / PATCHES_PER_SIDE) if micro else 16
    if size % patch:
        raise UserError(f"The model {name} needs an image_size that is a multiple of {patch}; it is {size}.")
    small = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
    config = ViTConfig(image_size=size, patch_size=patch, **(small if micro else {}), **shared)
    return ViTForImageClassification(config)


def _divisor_near(size: int, wanted: float) -> int:
    return min((d for d in range(1, size + 1) if size % d == 0), key=lambda d: (abs(d - max(wanted, 2)), d))


def part_of_images(config: Any) -> Any:
    """What a configuration says of images, which is a part of it where the model was trained on texts as well."""
    return getattr(config, "vision_config", None) or config


def takes_images_of(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether a model takes images of another size than the `image_size` of its configuration, as convolutions do.

    Only the model knows: those that fill up or interpolate have an `image_size` as well. So it is tried.

    Args:
        model: with or without weights.
        shape: channels, height and width.
    """
    weight = next(model.parameters())
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(pixel_values=torch.zeros(1, *shape, dtype=weight.dtype, device=weight.device))
    except (RuntimeError, ValueError):
        return False
    finally:
        model.train(was_training)
    return True


def shape_of_images(directory: Path, model: Any, usual: tuple[int, ...]) -> tuple[int, ...]:
    """Channels, height and width of the images that a model of another program takes.

    Args:
        directory: of the model.
        model: the same, loaded.
        usual: what is taken where nothing says otherwise and the model takes it.
    """
    config = part_of_images(model.config)
    channels = getattr(config, "num_channels", None) or usual[0]
    size = getattr(config, "image_size", None)
    geometry = geometry_in(exported_preprocessor(directory), "RGB")
    for sides in ((geometry.size, geometry.size) if geometry else usual[1:], usual[1:]):
        if not size or takes_images_of(model, (channels, *sides)):
            return (channels, *sides)
    return (channels, *(size if isinstance(size, (list, tuple)) else (size, size)))


def of_three_channels(model: nn.Module) -> dict[str, torch.Tensor] | None:
    """The weights of a model of one channel as one that takes colours and looks at their luma alone.

    The first convolution is linear in the channels. So three channels, with its weights times the shares of red, green
    and blue in grey, give what the grey image gives; and three equal channels give the same as one. What is rounded off
    two of them is in the third, so that `to_one_channel` finds the same bits again.

    Returns:
        None where it is not one convolution that takes the images.
    """
    found = _takes_images(model, 1)
    if found is None:
        return None
    name, convolution = found
    weights = convolution.weight.detach()
    red, green = (weights * share for share in LUMA[:2])
    blue = (weights.double() - red.double() - green.double()).to(weights.dtype)
    return {**model.state_dict(), f"{name}.weight": torch.cat([red, green, blue], dim=1)}


def to_one_channel(model: nn.Module) -> nn.Module:
    """The model that `of_three_channels` was given, in place."""
    found = _takes_images(model, len(LUMA))
    if found is None:
        return model
    weight = found[1].weight
    found[1].weight = nn.Parameter(weight.detach().double().sum(dim=1, keepdim=True).to(weight.dtype))
    found[1].in_channels = 1
    # Some modules compare the channels of what they are given with a number of their own.
    for each in (model.config, *model.modules()):
        if getattr(each, "num_channels", None) == len(LUMA):
            setattr(each, "num_channels", 1)  # noqa: B010 (a module's attributes are of no known type)
    return model


def _takes_images(model: nn.Module, channels: int) -> tuple[str, nn.Conv2d] | None:
    """The one convolution that takes images of so many channels, and its name; None if there is not one."""
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and module.groups == 1 and module.in_channels == channels
    ]
    fits = len(found) == 1 and getattr(model.config, "num_channels", None) == channels
    return found[0] if fits else None

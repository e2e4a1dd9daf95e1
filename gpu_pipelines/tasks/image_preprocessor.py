"""The preprocessor_config.json of a model: how images are resized, and how their values are scaled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.image_features import ImageGeometry
from gpu_pipelines.artifacts.remote_files import fetched_folder, is_remote
from gpu_pipelines.errors import UserError, first_line
from gpu_pipelines.tasks.model_places import loaded_from

PREPROCESSOR = "preprocessor_config.json"
#: The entry by which an exported model says that it learned from grey images; transformers passes over it.
COLOR_MODE = "color_mode"
#: The entry that says that a model of three channels was one of one channel, whose shares it holds.
LEARNED_CHANNELS = "learned_channels"
#: The entry that says that a model takes blue, green and red, and the class that heeds it.
FLIPPED, FLIPPING_CLASS = "do_flip_channel_order", "MobileViTImageProcessor"
#: The entries that say how values are scaled, and in which order colours stand.
SCALING = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std", FLIPPED)
#: What ConvNextImageProcessor makes of images from this side on: it crops smaller ones alone.
_CONVNEXT_SQUASHES_FROM = 384
_BILINEAR, _CONVNEXT_CROP, _LEVIT_SHARE, _POOLFORMER_CROP = 2, 224 / 256, 256 / 224, 0.9


@dataclass(frozen=True)
class Scaling:
    """How the values of pixels, 0 to 255, become a model's inputs: (value × factor - mean) / deviation.

    Attributes:
        factor: by which a value is multiplied.
        mean, deviation: of each channel, or one for all.
        flipped: whether the model takes blue, green and red.
    """

    factor: float = 1 / 255
    mean: tuple[float, ...] = (0.5,)
    deviation: tuple[float, ...] = (0.5,)
    flipped: bool = False

    @classmethod
    def of(cls, preprocessor: Mapping[str, Any]) -> Scaling:
        """The scaling of a preprocessor_config.json; entries that it leaves out are as in `prepare_data`."""
        factor = preprocessor.get("rescale_factor") or 1 / 255
        if not preprocessor.get("do_rescale", True):
            factor = 1.0
        flipped = bool(preprocessor.get(FLIPPED))
        if not preprocessor.get("do_normalize", True):
            return cls(factor, (0.0,), (1.0,), flipped)
        mean, deviation = (_numbers_in(preprocessor, name, 0.5) for name in ("image_mean", "image_std"))
        return cls(factor, mean, deviation, flipped)


def scaling_of(preprocessor: Mapping[str, Any], channels: int) -> Scaling:
    """The scaling of values for a model with so many channels.

    An exported model of one channel names those of the three that transformers gives it, which are alike.
    """
    found = Scaling.of(preprocessor)
    return found if channels > 1 else Scaling(found.factor, found.mean[:1], found.deviation[:1])


def read_preprocessor(name: str | Path) -> dict[str, Any]:
    """The preprocessor of a model in plain terms, empty if it has none.

    Its class fills in what the file leaves out, and knows what a number for a size means: 256 is the shorter side for
    CLIP's, and both sides for DeiT's.

    Args:
        name: a directory in Hugging Face layout, or a hub id.
    """
    from transformers import AutoImageProcessor
    from transformers.image_processing_base import ImageProcessingMixin

    found = loaded_from(name)
    try:
        raw, _ = ImageProcessingMixin.get_image_processor_dict(**found)
    except OSError:
        return {}
    try:
        return in_plain_terms({**raw, **AutoImageProcessor.from_pretrained(**found, trust_remote_code=False).to_dict()})
    except (OSError, ValueError, ImportError, KeyError):  # it names no class that is known here
        return in_plain_terms(raw)


def exported_preprocessor(directory: Path) -> dict[str, Any]:
    """The same for an exported model, without asking a hub."""
    return read_preprocessor(directory) if (directory / PREPROCESSOR).is_file() else {}


def in_plain_terms(preprocessor: Mapping[str, Any]) -> dict[str, Any]:
    """Translates the entries of a preprocessor whose class interprets them in its own way into plain entries.

    Args:
        preprocessor: as a preprocessor_config.json has it.

    Returns:
        The same as ViTImageProcessor and CLIPImageProcessor take it, but for `FLIPPED`.
    """
    named = preprocessor.get("image_processor_type") or preprocessor.get("feature_extractor_type") or ""
    for kind, in_plain in _IN_PLAIN.items():
        if str(named).startswith(kind):
            return {**preprocessor, "image_processor_type": "CLIPImageProcessor", **in_plain(preprocessor)}
    return dict(preprocessor)


def _of_convnext(said: Mapping[str, Any]) -> dict[str, Any]:
    side = _shorter_side(said)
    if side is None:
        return {}
    if side >= _CONVNEXT_SQUASHES_FROM:
        return {"size": {"height": side, "width": side}, "do_center_crop": False}
    before = int(side / (said.get("crop_pct") or _CONVNEXT_CROP))
    return {"size": {"shortest_edge": before}, "do_center_crop": True, "crop_size": side}


def _of_levit(said: Mapping[str, Any]) -> dict[str, Any]:
    side = _shorter_side(said)
    return {"size": {"shortest_edge": int(_LEVIT_SHARE * side)}} if side else {}


def _of_poolformer(said: Mapping[str, Any]) -> dict[str, Any]:
    side = _shorter_side(said)
    return {"size": {"shortest_edge": int(side / (said.get("crop_pct") or _POOLFORMER_CROP))}} if side else {}


def _of_efficientnet(said: Mapping[str, Any]) -> dict[str, Any]:
    """It divides by the deviation twice where the model has its head, and may move all values down by 1."""
    mean, deviation = np.zeros(1), np.ones(1)
    said_mean, said_deviation = (np.array(_numbers_in(said, name, 0.5)) for name in ("image_mean", "image_std"))
    if said.get("do_normalize", True):
        mean, deviation = said_mean, said_deviation
    if said.get("do_rescale", True) and said.get("rescale_offset"):
        mean = mean + 1
    if said.get("include_top", True):
        deviation = deviation * said_deviation
    return {"do_normalize": True, "image_mean": mean.tolist(), "image_std": deviation.tolist()}


def _of_mobilevit(said: Mapping[str, Any]) -> dict[str, Any]:
    return {"do_normalize": False, FLIPPED: said.get(FLIPPED, True)}


#: By how the names of their classes begin.
_IN_PLAIN: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "ConvNext": _of_convnext,
    "EfficientNet": _of_efficientnet,
    "Levit": _of_levit,
    "MobileViT": _of_mobilevit,
    "PoolFormer": _of_poolformer,
}


def geometry_for(model: str, mode: str) -> ImageGeometry | None:
    """How the images of a pretrained model are resized, by its preprocessor, else by the image_size of its config.json.

    Args:
        model: a directory in Hugging Face layout, local or gs://, or a hub id.
        mode: "L" or "RGB"; that of a model that learned from grey images is "L" anyway.

    Returns:
        None where neither says so, or the images do not become squares of one size.

    Raises:
        UserError: there is no such model.
    """
    from transformers import AutoConfig

    place = fetched_folder(model) if is_remote(model) else model
    said = read_preprocessor(place)
    if found := geometry_in(said, "L" if said.get(COLOR_MODE) == "L" else mode):
        return found
    try:
        size = getattr(AutoConfig.from_pretrained(**loaded_from(place)), "image_size", None)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"image_processor is {model!r}, which has no {PREPROCESSOR} and no config.json: {first_line(error)}",
            "Give a directory in Hugging Face layout or a hub id, or image_size.",
        ) from None
    return ImageGeometry(size, mode) if isinstance(size, int) else None


def mode_of(preprocessor: Mapping[str, Any]) -> str:
    """ "L" if a preprocessor is of an exported model that learned from grey images, else "RGB"."""
    mean = preprocessor.get("image_mean")
    grey = preprocessor.get(COLOR_MODE) == "L" or (isinstance(mean, Sequence) and len(mean) == 1)
    return "L" if grey else "RGB"


def geometry_in(preprocessor: Mapping[str, Any], mode: str) -> ImageGeometry | None:
    """How a preprocessor resizes images; None if they do not become squares of one size.

    Args:
        preprocessor: as a preprocessor_config.json has it.
        mode: "L" or "RGB".
    """
    size = preprocessor.get("size")
    cropped = _side(preprocessor.get("crop_size")) if preprocessor.get("do_center_crop") else None
    if not preprocessor.get("do_resize", True) or preprocessor.get("do_pad"):
        return None
    resample = preprocessor.get("resample")
    resample = _BILINEAR if resample is None else int(resample)
    keeps_aspect = isinstance(size, int) and cropped is not None
    if isinstance(size, Mapping) and size.get("shortest_edge"):
        size, keeps_aspect = size["shortest_edge"], True
    side = _side(size)
    if side is None or (keeps_aspect and cropped is None) or (cropped or side) > side:
        return None  # what is cut out of less is filled up with black
    if cropped is None:
        return ImageGeometry(side, mode, resample)
    return ImageGeometry(cropped, mode, resample, side, keeps_aspect)


def _shorter_side(preprocessor: Mapping[str, Any]) -> int | None:
    size = preprocessor.get("size")
    return (size.get("shortest_edge") if isinstance(size, Mapping) else None) or _side(size)


def _side(size: Any) -> int | None:
    if isinstance(size, Mapping):
        height, width = size.get("height"), size.get("width")
        return height if isinstance(height, int) and height == width else None
    return size if isinstance(size, int) else None


def _numbers_in(preprocessor: Mapping[str, Any], name: str, usual: float) -> tuple[float, ...]:
    given = preprocessor.get(name)
    given = usual if given is None else given
    return tuple(map(float, given)) if isinstance(given, Sequence) else (float(given),)

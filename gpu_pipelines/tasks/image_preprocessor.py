"""What the preprocessor_config.json of a model says: how images are resized, and how their values are scaled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.image_features import ImageGeometry
from gpu_pipelines.artifacts.remote_files import fetched_folder, is_remote
from gpu_pipelines.errors import UserError, first_line

PREPROCESSOR = "preprocessor_config.json"
#: The entry by which an exported model says that it learned from grey images; transformers passes over it.
COLOR_MODE = "color_mode"
#: The entry that says that a model of three channels was one of one channel, whose shares it holds.
LEARNED_CHANNELS = "learned_channels"
#: The entries that say how values are scaled.
SCALING = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
#: Those without which the defaults of the class count, which transformers knows.
_HAS_DEFAULTS = ("image_mean", "image_std", "size", "resample")
#: What ConvNextImageProcessor makes of images from this side on: it crops smaller ones alone.
_CONVNEXT_SQUASHES_FROM = 384
_BILINEAR, _CONVNEXT_CROP = 2, 224 / 256


@dataclass(frozen=True)
class Scaling:
    """How the values of pixels, 0 to 255, become what a model takes: (value × factor - mean) / deviation.

    Attributes:
        factor: what a value is multiplied by.
        mean, deviation: of each channel, or one of all.
    """

    factor: float = 1 / 255
    mean: tuple[float, ...] = (0.5,)
    deviation: tuple[float, ...] = (0.5,)

    @classmethod
    def of(cls, preprocessor: Mapping[str, Any]) -> Scaling:
        """The scaling that a preprocessor_config.json asks for; what it leaves out is as `prepare_data` does it."""
        factor = preprocessor.get("rescale_factor") or 1 / 255
        if not preprocessor.get("do_rescale", True):
            factor = 1.0
        if not preprocessor.get("do_normalize", True):
            return cls(factor, (0.0,), (1.0,))
        mean, deviation = (_numbers(preprocessor.get(name) or 0.5) for name in ("image_mean", "image_std"))
        return cls(factor, mean, deviation)


def scaling_of(preprocessor: Mapping[str, Any], channels: int) -> Scaling:
    """How values become what a model of so many channels takes.

    An exported model of one channel names those of the three that transformers gives it, which are alike.
    """
    found = Scaling.of(preprocessor)
    return found if channels > 1 else Scaling(found.factor, found.mean[:1], found.deviation[:1])


def read_preprocessor(name: str | Path) -> dict[str, Any]:
    """The preprocessor of a model, empty where it has none.

    Args:
        name: a directory in Hugging Face layout, or a hub id.
    """
    from transformers import AutoImageProcessor
    from transformers.image_processing_base import ImageProcessingMixin

    place = Path(name).expanduser()
    found: str | Path = place if place.is_dir() else str(name)
    try:
        raw, _ = ImageProcessingMixin.get_image_processor_dict(found)
    except OSError:
        return {}
    if all(entry in raw for entry in _HAS_DEFAULTS):
        return dict(raw)
    try:
        return {**AutoImageProcessor.from_pretrained(found).to_dict(), **raw}
    except (OSError, ValueError, ImportError, KeyError):  # it names no class that is known here
        return dict(raw)


def exported_preprocessor(directory: Path) -> dict[str, Any]:
    """The preprocessor of an exported model as it stands in the file; empty where there is none."""
    path = directory / PREPROCESSOR
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


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

    place = str(fetched_folder(model)) if is_remote(model) else str(Path(model).expanduser())
    said = read_preprocessor(place)
    if found := geometry_in(said, "L" if said.get(COLOR_MODE) == "L" else mode):
        return found
    try:
        size = getattr(AutoConfig.from_pretrained(place), "image_size", None)
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
    """How a preprocessor resizes images; None where these do not become squares of one size.

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
    shorter = size.get("shortest_edge") if isinstance(size, Mapping) else None
    if _is_convnext(preprocessor) and (shorter := shorter or _side(size)):
        if shorter >= _CONVNEXT_SQUASHES_FROM:
            return ImageGeometry(shorter, mode, resample)
        before = int(shorter / (preprocessor.get("crop_pct") or _CONVNEXT_CROP))
        return ImageGeometry(shorter, mode, resample, before, keeps_aspect=True)
    if isinstance(size, int) and cropped:
        shorter = size
    if shorter:
        return ImageGeometry(cropped, mode, resample, shorter, keeps_aspect=True) if cropped else None
    side = _side(size)
    if side is None:
        return None
    return ImageGeometry(cropped, mode, resample, side) if cropped else ImageGeometry(side, mode, resample)


def _is_convnext(preprocessor: Mapping[str, Any]) -> bool:
    named = preprocessor.get("image_processor_type") or preprocessor.get("feature_extractor_type") or ""
    return str(named).startswith("ConvNext")


def _side(size: Any) -> int | None:
    if isinstance(size, Mapping):
        height, width = size.get("height"), size.get("width")
        return height if isinstance(height, int) and height == width else None
    return size if isinstance(size, int) else None


def _numbers(given: float | Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, given)) if isinstance(given, Sequence) else (float(given),)

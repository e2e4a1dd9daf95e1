"""Image classification: Hugging Face architectures on fixed-size uint8 images."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks import pretrained
from gpu_pipelines.tasks.image_classification.models import (
    LUMA,
    image_classifier,
    of_three_channels,
    part_of_images,
    shape_of_images,
    takes_images_of,
    to_one_channel,
)
from gpu_pipelines.tasks.image_classification.task import ImageClassificationTask
from gpu_pipelines.tasks.image_preprocessor import (
    COLOR_MODE,
    FLIPPED,
    FLIPPING_CLASS,
    LEARNED_CHANNELS,
    PREPROCESSOR,
    SCALING,
    Scaling,
    exported_preprocessor,
    geometry_in,
    mode_of,
    read_preprocessor,
    scaling_of,
)
from gpu_pipelines.tasks.model_places import is_configuration_alone
from gpu_pipelines.tasks.recipe import OTHER_LABEL, OTHER_SHARE, Batch, Recipe, on_device
from gpu_pipelines.tasks.saved_model import load_exported

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.dataset import Dataset


class ImageClassification(Recipe):
    """The recipe of the task `image_classification`.

    Args:
        labels: class names.
        preprocessing: how images become what the model takes, in the terms of `preprocessor_config.json`.
        image_shape: channels, height, width that the model takes.
        is_grey: whether the rows are grey; None if that follows from the channels.

    Attributes:
        max_shard_size: bytes of the largest file that `export` writes, as `save_pretrained` takes them.
    """

    smooths = mixes = has_one_shape = True
    max_shard_size: str = pretrained.MAX_SHARD_SIZE

    def __init__(
        self,
        labels: list[str],
        preprocessing: dict[str, Any],
        image_shape: tuple[int, ...],
        is_grey: bool | None = None,
    ) -> None:
        pretrained.quiet_transformers()
        self.labels = labels
        self.is_grey = image_shape[0] == 1 if is_grey is None else is_grey
        self._of_rows = image_shape, preprocessing
        self._take_images(image_shape, preprocessing)

    def _take_images(self, image_shape: tuple[int, ...], preprocessing: dict[str, Any]) -> None:
        self.image_shape, self.preprocessing = image_shape, preprocessing
        self._scaling = scaling_of(preprocessing, image_shape[0])

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> ImageClassification:
        manifest = dataset.manifest
        return cls(manifest.labels, manifest.preprocessing, manifest.features["image"].shape)

    @classmethod
    def for_exported(cls, directory: Path) -> ImageClassification:
        """The recipe that an exported model was trained with.

        Args:
            directory: the model, in Hugging Face layout.
        """
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        said = exported_preprocessor(directory)
        mode, geometry = mode_of(said), geometry_in(said, mode_of(said))
        if geometry is None:
            raise UserError(f"{directory}/{PREPROCESSOR} does not turn images into squares of one size.")
        of_images = config.get("vision_config") or config
        channels = said.get(LEARNED_CHANNELS) or of_images.get("num_channels") or geometry.channels
        return cls(pretrained.labels_of(config), said, (channels, geometry.size, geometry.size), mode == "L")

    def build_model(self, name: str) -> nn.Module:
        """Builds the model to train.

        Images are scaled from then on as a pretrained model's own preprocessor says.

        Args:
            name: one of the architectures of the task (untrained), a directory with a config.json alone (untrained),
                a local directory in Hugging Face layout, or a hub id; from the latter two come the weights as well,
                but for a classification head of another size.

        Raises:
            UserError: the name is unknown, or the model cannot take these images.
        """
        self._take_images(*self._of_rows)
        if name in ImageClassificationTask.models:
            shared = {"num_channels": self.image_shape[0], **pretrained.label_config(self.labels)}
            return image_classifier(name, shared, self.image_shape[1])
        from transformers import AutoModelForImageClassification

        if is_configuration_alone(name):
            channels, size = self.image_shape[:2]
            shared = {"num_channels": channels, "image_size": size, **pretrained.label_config(self.labels)}
            return pretrained.from_configuration(AutoModelForImageClassification, name, **shared)
        model = pretrained.from_pretrained(
            AutoModelForImageClassification,
            name,
            ImageClassificationTask.models,
            pretrained.is_outside_backbone,
            **pretrained.label_config(self.labels),
        )
        said = read_preprocessor(name)
        # Of rows in colour it takes the luma, as for anyone else who opens it.
        model = to_one_channel(model) if self.is_grey and said.get(LEARNED_CHANNELS) == 1 else model
        self._take_over(name, model, said)
        return model

    def load_exported(self, directory: Path) -> nn.Module:
        """Loads an exported model; every weight must be in the file and in the model.

        Args:
            directory: the model, in Hugging Face layout.
        """
        from transformers import AutoModelForImageClassification

        model = load_exported(AutoModelForImageClassification, directory)
        return to_one_channel(model) if exported_preprocessor(directory).get(LEARNED_CHANNELS) == 1 else model

    def batch(self, columns: dict[str, np.ndarray], device: torch.device) -> Batch:
        """Rows of a dataset as tensors on `device`: `pixel_values`, scaled as the model takes them, and `labels`."""
        # On GPUs a convolution takes the order of its rows for all that follow: half the time of ResNet-50.
        order = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        images = on_device(columns["image"], device).to(torch.float32, memory_format=order)
        labels = on_device(columns["label"], device)
        batch = {"pixel_values": self._scaled(images), "labels": labels.long()}
        if OTHER_LABEL in columns:
            batch[OTHER_LABEL] = on_device(columns[OTHER_LABEL], device).long()
            batch[OTHER_SHARE] = on_device(columns[OTHER_SHARE], device)
        return batch

    def _scaled(self, images: torch.Tensor) -> torch.Tensor:
        """Values of 0 to 255 as the model takes them, in as many channels."""
        if images.shape[1] != self.image_shape[0]:
            images = images.mean(dim=1, keepdim=True).repeat(1, self.image_shape[0], 1, 1)
        if self._scaling == Scaling() or self._scaling == Scaling(mean=(0.5,) * 3, deviation=(0.5,) * 3):
            return images.div_(127.5).sub_(1.0)  # the same to the bit as ever
        mean, deviation = (
            torch.tensor(each, device=images.device).view(1, -1, 1, 1)
            for each in (self._scaling.mean, self._scaling.deviation)
        )
        scaled = images.mul_(self._scaling.factor).sub_(mean).div_(deviation)
        return scaled.flip(1) if self._scaling.flipped else scaled

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy of a batch, in nats; of mixed images against both of their classes, by their shares."""
        logits, smoothing = model(pixel_values=batch["pixel_values"]).logits.float(), self.smoothing_of(model)
        if OTHER_LABEL not in batch:
            return nn.functional.cross_entropy(logits, batch["labels"], label_smoothing=smoothing)
        one, other = (
            nn.functional.cross_entropy(logits, batch[name], reduction="none", label_smoothing=smoothing)
            for name in ("labels", OTHER_LABEL)
        )
        return torch.lerp(one, other, batch[OTHER_SHARE]).mean()

    def predict(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Class probabilities, float32 of shape (rows, classes). Images of another size are resized."""
        return model(pixel_values=self.fitted(batch["pixel_values"])).logits.float().softmax(dim=-1)

    def fitted(self, images: torch.Tensor) -> torch.Tensor:
        """Images in the size that the model takes; those of a dataset of another size are resized.

        Args:
            images: float32 (rows, channels, height, width).
        """
        size = self.image_shape[1:]
        if tuple(images.shape[2:]) == size:
            return images
        return nn.functional.interpolate(images, size=size, mode="bilinear", antialias=True)

    def export(self, model: nn.Module, directory: Path) -> None:
        """Writes config.json, model.safetensors and preprocessor_config.json.

        transformers gives images to a model in colour, whatever they are. So a model of grey images is written as one
        of three channels that looks at their luma, and gives the same for a grey image.
        """
        config: Any = model.config
        said, channels = self.preprocessing, getattr(part_of_images(config), "num_channels", None)
        weights = of_three_channels(model) if self.is_grey else None
        if weights is not None:
            config.num_channels = channels = len(LUMA)
        pretrained.save(model, directory, self.max_shard_size, weights)
        if weights is not None:
            config.num_channels = 1
        if self.is_grey and channels == len(LUMA):
            said = self._said_of_grey()
        if weights is not None:
            said[LEARNED_CHANNELS] = 1
        if said.get(FLIPPED):
            said = {"do_center_crop": False, **said, "image_processor_type": FLIPPING_CLASS}
        (directory / PREPROCESSOR).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")

    def taking_over(self, directory: Path, model: nn.Module) -> tuple[ImageClassification, nn.Module]:
        said = {**self.preprocessing, **_scaling_in(exported_preprocessor(directory))}
        shape = shape_of_images(directory, model, self.image_shape)
        taken = ImageClassification(self.labels, said, shape)
        taken._of_rows = self._of_rows
        return taken, model

    def complete(self, directory: Path) -> None:
        """Says how images are prepared, where the model does not and was given the rows of the dataset as they are."""
        rows, path = self._of_rows[0], directory / PREPROCESSOR
        if path.is_file() or rows[1:] != self.image_shape[1:] or rows[0] > self.image_shape[0]:
            return
        said = self._said_of_grey() if rows[0] < self.image_shape[0] else self.preprocessing
        path.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")

    def _said_of_grey(self) -> dict[str, Any]:
        """The preprocessor of a model that is given grey images in three channels."""
        scaling = {"image_mean": self._scaling.mean, "image_std": self._scaling.deviation}
        of_each = {name: [*values, *values, *values][: len(LUMA)] for name, values in scaling.items()}
        return {**self.preprocessing, **of_each, "do_convert_rgb": True, COLOR_MODE: "L"}

    def _take_over(self, name: str, model: Any, said: dict[str, Any]) -> None:
        """Takes images from now on as a pretrained model was given them.

        Raises:
            UserError: those of the dataset are of a size or have colours that it does not take.
        """
        config = part_of_images(getattr(model, "config", None))
        size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", None)
        given = (channels or self.image_shape[0], *self.image_shape[1:])
        if isinstance(size, int) and size != self.image_shape[1] and not takes_images_of(model, given):
            raise UserError(
                f"The model {name!r} takes images of {size} × {size} pixels; those of the dataset have "
                f"{self.image_shape[1]} × {self.image_shape[2]}.",
                f"Prepare them with -p image_processor={name}, or -p image_size={size}.",
            )
        # Grey goes into a model of colours three times; nothing else can be made of images that are there.
        if isinstance(channels, int) and channels not in (self.image_shape[0], len(LUMA)):
            value = {1: "L"}.get(channels)
            raise UserError(
                f"The model {name!r} takes images of {channels} channels; those of the dataset have "
                f"{self.image_shape[0]}.",
                f"Give -p color_mode={value}." if value else "Take another model.",
            )
        self._take_images(given, {**self.preprocessing, **_scaling_in(said)})
        geometry = geometry_in(said, "RGB")
        usual = geometry.size if geometry else size
        if isinstance(usual, int) and usual != given[1] and os.environ.get("RANK", "0") == "0":
            print(
                f"warning: {name} was trained on images of {usual} × {usual} pixels, and those of the "
                f"dataset have {given[1]} × {given[2]}; -p image_processor={name} prepares them so",
                flush=True,
            )


def _scaling_in(preprocessor: dict[str, Any]) -> dict[str, Any]:
    return {entry: preprocessor[entry] for entry in SCALING if preprocessor.get(entry) is not None}

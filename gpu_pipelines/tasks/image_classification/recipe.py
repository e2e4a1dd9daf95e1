"""Image classification: Hugging Face architectures on fixed-size uint8 images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks import pretrained
from gpu_pipelines.tasks.image_classification.models import image_classifier, normalised, shape_of_images
from gpu_pipelines.tasks.image_classification.task import ImageClassificationTask
from gpu_pipelines.tasks.recipe import Batch, Recipe

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.dataset import Dataset


class ImageClassification(Recipe):
    """The recipe of the task `image_classification`.

    Args:
        labels: class names.
        preprocessing: the dataset's preprocessing, in the terms of `preprocessor_config.json`.
        image_shape: channels, height, width of a row.
    """

    def __init__(self, labels: list[str], preprocessing: dict[str, Any], image_shape: tuple[int, ...]) -> None:
        pretrained.quiet_transformers()
        self.labels = labels
        self.preprocessing = preprocessing
        self.image_shape = image_shape

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> ImageClassification:
        manifest = dataset.manifest
        return cls(manifest.labels, manifest.preprocessing, manifest.features["image"].shape)

    @classmethod
    def for_exported(cls, directory: Path) -> ImageClassification:
        """The recipe that an exported model was trained with."""
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        preprocessing = json.loads((directory / "preprocessor_config.json").read_text(encoding="utf-8"))
        size = preprocessing["size"]
        return cls(
            pretrained.labels_of(config),
            preprocessing,
            (len(preprocessing["image_mean"]), size["height"], size["width"]),
        )

    def build_model(self, name: str) -> nn.Module:
        """Builds the model to train.

        Args:
            name: one of the architectures of the task (untrained), a directory with a config.json alone (untrained),
                a local directory in Hugging Face layout, or a hub id; from the latter two come the weights as well,
                but for a classification head of another size.

        Raises:
            UserError: the name is unknown, or the model cannot take these images.
        """
        if name in ImageClassificationTask.models:
            shared = {"num_channels": self.image_shape[0], **pretrained.label_config(self.labels)}
            return image_classifier(name, shared, self.image_shape[1])
        from transformers import AutoModelForImageClassification

        if pretrained.is_configuration_alone(name):
            channels, size = self.image_shape[:2]
            shared = {"num_channels": channels, "image_size": size, **pretrained.label_config(self.labels)}
            return pretrained.from_configuration(AutoModelForImageClassification, name, **shared)
        model = pretrained.from_pretrained(
            AutoModelForImageClassification,
            name,
            ImageClassificationTask.models,
            _is_head,
            **pretrained.label_config(self.labels),
        )
        self._require_images_fit(name, model.config)
        return model

    def load_exported(self, directory: Path) -> nn.Module:
        """Loads an exported model; every weight must be in the file and in the model."""
        from transformers import AutoModelForImageClassification

        return pretrained.load_exported(AutoModelForImageClassification, directory)

    def batch(self, columns: dict[str, np.ndarray], device: torch.device) -> Batch:
        """Rows of a dataset as tensors on `device`: `pixel_values` scaled to [-1, 1], and `labels`."""
        images = torch.from_numpy(columns["image"]).to(device, non_blocking=True)
        labels = torch.from_numpy(columns["label"]).to(device, non_blocking=True)
        return {"pixel_values": images.float().div_(127.5).sub_(1.0), "labels": labels.long()}

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy of a batch, in nats."""
        return nn.functional.cross_entropy(model(pixel_values=batch["pixel_values"]).logits.float(), batch["labels"])

    def predict(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Class probabilities, float32 of shape (rows, classes). Images of another size are resized."""
        images = batch["pixel_values"]
        if images.shape[1] != self.image_shape[0]:
            images = images.mean(dim=1, keepdim=True).expand(-1, self.image_shape[0], -1, -1)
        if tuple(images.shape[2:]) != self.image_shape[1:]:
            size = self.image_shape[1:]
            images = nn.functional.interpolate(images, size=size, mode="bilinear", antialias=True)
        return model(pixel_values=images).logits.float().softmax(dim=-1)

    def export(self, model: nn.Module, directory: Path) -> None:
        """Writes config.json, model.safetensors and preprocessor_config.json."""
        model.save_pretrained(directory)  # type: ignore[operator]
        text = json.dumps(self.preprocessing, indent=2) + "\n"
        (directory / "preprocessor_config.json").write_text(text, encoding="utf-8")

    def taking_over(self, directory: Path, model: nn.Module) -> tuple[ImageClassification, nn.Module]:
        shape = shape_of_images(directory, model.config, self.image_shape)
        return ImageClassification(self.labels, self.preprocessing, shape), normalised(directory, model)

    def _require_images_fit(self, name: str, config: Any) -> None:
        for what, wanted, has in (
            ("image_size", getattr(config, "image_size", None), self.image_shape[1]),
            ("color_mode", getattr(config, "num_channels", None), self.image_shape[0]),
        ):
            if isinstance(wanted, int) and wanted != has:
                value = {1: "L", 3: "RGB"}.get(wanted, wanted) if what == "color_mode" else wanted
                raise UserError(f"The model {name!r} takes other images than these.", f"Give -p {what}={value}.")


def _is_head(model: nn.Module, key: str) -> bool:
    # A new head is what fine-tuning means; any other weight that was not loaded would be silently random.
    return key.startswith(("classifier", "head"))

"""Image classification: Hugging Face architectures on fixed-size uint8 images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.errors import UserError, nearest, some_of
from gpu_pipelines.recipes.recipe import Batch, Recipe
from gpu_pipelines.recipes.tasks import TASKS

# The grid a small model sees: patches are sized so that an image becomes about this many per side.
PATCHES_PER_SIDE = 8


class ImageClassification(Recipe):
    """The recipe of the task `image_classification`.

    Args:
        labels: class names.
        preprocessing: the dataset's preprocessing, in the terms of `preprocessor_config.json`.
        image_shape: channels, height, width of a row.
    """

    def __init__(self, labels: list[str], preprocessing: dict[str, Any], image_shape: tuple[int, ...]) -> None:
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # for each of these small files it prints two lines into the step's log
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
        labels = [config["id2label"][str(index)] for index in range(len(config["id2label"]))]
        size = preprocessing["size"]
        return cls(labels, preprocessing, (len(preprocessing["image_mean"]), size["height"], size["width"]))

    def build_model(self, name: str) -> nn.Module:
        """Builds the model to train.

        Args:
            name: one of the architectures of the task (untrained), a local directory in Hugging Face layout, or a
                hub id; from the latter two come the weights as well, but for a classification head of another size.

        Raises:
            UserError: the name is unknown, or the model cannot take these images.
        """
        if name in TASKS["image_classification"].models:
            return self._from_architecture(name)
        return self._from_pretrained(name)

    def load_exported(self, directory: Path) -> nn.Module:
        """Loads an exported model; every weight must be in the file and in the model."""
        from transformers import AutoModelForImageClassification

        model, info = AutoModelForImageClassification.from_pretrained(
            directory, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
        if unmatched := _unmatched(info):
            raise UserError(f"The model in {directory} does not fit its config.json: {some_of(unmatched, most=5)}.")
        return model

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

    def _label_config(self) -> dict[str, Any]:
        return {
            "num_labels": len(self.labels),
            "id2label": dict(enumerate(self.labels)),
            "label2id": {label: index for index, label in enumerate(self.labels)},
        }

    def _from_architecture(self, name: str) -> nn.Module:
        channels, size = self.image_shape[0], self.image_shape[1]
        family, _, scale = name.partition("-")
        # Only the family's own module is imported: the package's index of all architectures takes seconds.
        if family == "convnext":
            from transformers.models.convnext import ConvNextConfig, ConvNextForImageClassification

            micro = {"num_stages": 2, "hidden_sizes": [32, 64], "depths": [2, 2], "layer_scale_init_value": 1.0}
            shape = {**micro, "patch_size": max(1, size // PATCHES_PER_SIDE)} if scale == "micro" else {}
            config = ConvNextConfig(num_channels=channels, image_size=size, **shape, **self._label_config())
            return ConvNextForImageClassification(config)
        from transformers.models.vit import ViTConfig, ViTForImageClassification

        patch = _divisor_near(size, size / PATCHES_PER_SIDE) if scale == "micro" else 16
        if size % patch:
            raise UserError(f"The model {name} needs an image_size that is a multiple of {patch}; it is {size}.")
        micro = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
        shape = micro if scale == "micro" else {}
        config = ViTConfig(num_channels=channels, image_size=size, patch_size=patch, **shape, **self._label_config())
        return ViTForImageClassification(config)

    def _from_pretrained(self, name: str) -> nn.Module:
        from transformers import AutoModelForImageClassification

        try:
            model, info = AutoModelForImageClassification.from_pretrained(
                name,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **self._label_config(),
            )
        except (OSError, ValueError) as error:
            raise UserError(
                f"The model {name!r} cannot be loaded: {str(error).splitlines()[0]}",
                f"{nearest(name, TASKS['image_classification'].models)} A local directory in Hugging Face layout or "
                "a hub id with safetensors weights serves as well.",
            ) from None
        # A new head is what fine-tuning means; any other weight that was not loaded would be silently random.
        if unmatched := [key for key in _unmatched(info) if not key.startswith(("classifier", "head"))]:
            raise UserError(f"The weights of {name!r} do not fit its architecture: {some_of(unmatched, most=5)}.")
        self._require_images_fit(name, model.config)
        return model

    def _require_images_fit(self, name: str, config: Any) -> None:
        for what, wanted, has in (
            ("image_size", getattr(config, "image_size", None), self.image_shape[1]),
            ("color_mode", getattr(config, "num_channels", None), self.image_shape[0]),
        ):
            if isinstance(wanted, int) and wanted != has:
                value = {1: "L", 3: "RGB"}.get(wanted, wanted) if what == "color_mode" else wanted
                raise UserError(f"The model {name!r} takes other images than these.", f"Give -p {what}={value}.")


def _divisor_near(size: int, wanted: float) -> int:
    return min((d for d in range(1, size + 1) if size % d == 0), key=lambda d: (abs(d - max(wanted, 2)), d))


def _unmatched(info: dict[str, Any]) -> list[str]:
    keys = [*info["missing_keys"], *info["unexpected_keys"]]
    keys += [key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]]
    return sorted(set(keys))

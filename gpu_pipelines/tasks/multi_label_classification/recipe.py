"""The recipe of multi-label classification: any classifier of images or texts, with a probability for each class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.artifacts.dataset import CLASSES, Dataset
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification
from gpu_pipelines.tasks.image_classification.task import ImageClassificationTask
from gpu_pipelines.tasks.inner_recipe import OuterRecipe, inner_recipe, inputs_in
from gpu_pipelines.tasks.multi_label_classification.task import PROBLEM
from gpu_pipelines.tasks.pretrained import labels_for
from gpu_pipelines.tasks.recipe import Batch, on_device
from gpu_pipelines.tasks.text_classification.recipe import TextClassification
from gpu_pipelines.tasks.text_recipe import encoder_logits


class MultiLabelClassification(OuterRecipe):
    """The recipe of the task `multi_label_classification`.

    Args:
        classes: their names.
        inner: the recipe that makes models and batches of images or texts.
    """

    def __init__(self, classes: list[str], inner: Any) -> None:
        self.classes = self.names = classes
        self.inner = inner
        self.has_one_shape = getattr(inner, "has_one_shape", False)
        self.labels: list[str] = []

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> MultiLabelClassification:
        manifest = dataset.manifest
        if CLASSES not in manifest.features:
            raise UserError(
                f"The dataset {dataset.directory} was prepared for {manifest.task}, with one class to a row or none.",
                "Prepare it with task=multi_label_classification.",
            )
        classes = list(manifest.preprocessing[CLASSES])
        return cls(classes, inner_recipe(dataset, classes, CLASSES))

    @classmethod
    def for_exported(cls, directory: Path) -> MultiLabelClassification:
        """The recipe that an exported model was trained with.

        Args:
            directory: the model, in Hugging Face layout.
        """
        kind: Any = ImageClassification if is_of_images(directory) else TextClassification
        inner = kind.for_exported(directory)
        return cls(inner.labels, inner)

    @property
    def auto_class(self) -> str:
        """The class of transformers that loads its models, for adapters that are kept beside them."""
        return getattr(self.inner, "auto_class", "")

    def build_model(self, name: str) -> nn.Module:
        """Builds the model to train.

        Args:
            name: as the classification of images, or that of texts, takes it.

        Raises:
            UserError: there is no such model for what is learned from, or it does not fit the data.
        """
        return self.inner.build_model(name)

    def load_exported(self, directory: Path) -> nn.Module:
        """Loads an exported model; every weight must be in the file and in the model.

        Args:
            directory: the model, in Hugging Face layout.
        """
        return self.inner.load_exported(directory)

    def batch(self, columns: dict[str, np.ndarray], device: torch.device) -> Batch:
        """The model's inputs, and `classes`, float32 (rows, classes): 1 for the classes of a row."""
        targets = on_device(columns[CLASSES].astype(np.float32), device)
        return {**inputs_in(self.inner, columns, device), CLASSES: targets}

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean binary cross entropy over rows and classes, in nats."""
        return nn.functional.binary_cross_entropy_with_logits(self._logits(model, batch), batch[CLASSES])

    def predict(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The probability of each class, float32 (rows, classes)."""
        return self._logits(model, batch).sigmoid()

    def export(self, model: nn.Module, directory: Path) -> None:
        """Writes config.json, model.safetensors, and tokenizer or preprocessor."""
        self.inner.export(model, directory)
        path = directory / "config.json"
        config = {**json.loads(path.read_text(encoding="utf-8")), "problem_type": PROBLEM}
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def taking_over(self, directory: Path, model: nn.Module) -> tuple[MultiLabelClassification, nn.Module]:
        inner, taken = self.inner.taking_over(directory, model)
        return MultiLabelClassification(labels_for(directory, self.classes), inner), taken

    def complete(self, directory: Path) -> None:
        self.inner.complete(directory)

    def _logits(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        if "pixel_values" not in batch:
            return encoder_logits(model, batch)
        logits: torch.Tensor = model(pixel_values=self.inner.fitted(batch["pixel_values"])).logits.float()
        return logits


def is_of_images(directory: Path) -> bool:
    """Whether an exported model takes images; else it takes texts."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return str((config.get("architectures") or [""])[0]).endswith(ImageClassificationTask.architectures)

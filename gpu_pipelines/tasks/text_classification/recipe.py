"""Text classification: Hugging Face encoders (or decoders) with a classification head, on rows of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.tasks import pretrained
from gpu_pipelines.tasks.batch_encoding import TYPE_IDS
from gpu_pipelines.tasks.recipe import Batch, on_device
from gpu_pipelines.tasks.text_architectures import classifier
from gpu_pipelines.tasks.text_classification.task import TextClassificationTask
from gpu_pipelines.tasks.text_recipe import (
    TextRecipe,
    encoder_logits,
    read_exported,
    require_dataset_of,
    trimmed_length,
)
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.dataset import Dataset


class TextClassification(TextRecipe):
    """The recipe of the task `text_classification`.

    Args:
        labels: class names.
        tokenizer: what the rows were made with.
        sequence_length: tokens of a row.
    """

    models = TextClassificationTask.models
    auto_class = TextClassificationTask.auto_class

    def __init__(self, labels: list[str], tokenizer: TextTokenizer, sequence_length: int) -> None:
        super().__init__(tokenizer, sequence_length)
        self.labels = labels

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> TextClassification:
        manifest = dataset.manifest
        tokenizer = require_dataset_of(dataset, "text_classification", ("input_ids", "length", "label"))
        return cls(manifest.labels, tokenizer, manifest.features["input_ids"].shape[0])

    @classmethod
    def for_exported(cls, directory: Path) -> TextClassification:
        """The recipe that an exported model was trained with.

        Args:
            directory: the model, in Hugging Face layout.
        """
        return cls(*read_exported(directory))

    def untrained(self, name: str) -> nn.Module:
        return classifier(name, self.config(), self.sequence_length)

    def config(self) -> dict[str, Any]:
        return {**self.tokenizer.config(), **pretrained.label_config(self.labels)}

    def changes(self) -> dict[str, Any]:
        # A decoder used as a classifier looks for the last token that is not padding.
        return {**pretrained.label_config(self.labels), "pad_token_id": self.tokenizer.padding}

    def build_model(self, name: str) -> nn.Module:
        model: Any = super().build_model(name)
        # The decoder of a T5 has a configuration of its own.
        for module in model.modules():
            if hasattr(module, "config"):
                module.config.use_cache = False
        return model

    def batch(self, columns: dict[str, np.ndarray], device: torch.device) -> Batch:
        """Rows of a dataset as `input_ids`, `attention_mask` and `labels`, as long as the longest of these rows.

        Of pairs, `token_type_ids` too.
        """
        lengths = columns["length"]
        # The rows of a dataset can be shorter than what a registered model takes.
        width = trimmed_length(int(lengths.max()), columns["input_ids"].shape[1])
        mask = np.arange(width) < lengths[:, None]
        tensors = {"input_ids": columns["input_ids"][:, :width], "attention_mask": mask, "labels": columns["label"]}
        if TYPE_IDS in columns:
            tensors[TYPE_IDS] = columns[TYPE_IDS][:, :width]
        return {name: on_device(np.ascontiguousarray(values), device).long() for name, values in tensors.items()}

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy of a batch, in nats."""
        smoothing = self.smoothing_of(model)
        return nn.functional.cross_entropy(encoder_logits(model, batch), batch["labels"], label_smoothing=smoothing)

    def predict(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Class probabilities, float32 of shape (rows, classes)."""
        return encoder_logits(model, batch).softmax(dim=-1)

"""Text classification: Hugging Face encoders (or decoders) with a classification head, on rows of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.tasks import pretrained
from gpu_pipelines.tasks.recipe import Batch, Recipe
from gpu_pipelines.tasks.text_classification.task import TextClassificationTask
from gpu_pipelines.tasks.text_rows import require_dataset_of, require_taken_over, require_text_fits, trimmed_length
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer

if TYPE_CHECKING:
    from gpu_pipelines.artifacts.dataset import Dataset


class TextClassification(Recipe):
    """The recipe of the task `text_classification`.

    Args:
        labels: class names.
        tokenizer: what the rows were made with.
        sequence_length: tokens of a row.
    """

    def __init__(self, labels: list[str], tokenizer: TextTokenizer, sequence_length: int) -> None:
        pretrained.quiet_transformers()
        self.labels = labels
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> TextClassification:
        manifest = dataset.manifest
        tokenizer = require_dataset_of(dataset, "text_classification", ("input_ids", "length", "label"))
        return cls(manifest.labels, tokenizer, manifest.features["input_ids"].shape[0])

    @classmethod
    def for_exported(cls, directory: Path) -> TextClassification:
        """The recipe that an exported model was trained with."""
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        longest = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))["model_max_length"]
        return cls(pretrained.labels_of(config), TextTokenizer.read(directory), longest)

    def build_model(self, name: str) -> nn.Module:
        """Builds the model to train.

        Args:
            name: one of the architectures of the task (untrained), a directory with a config.json alone (untrained),
                a local directory in Hugging Face layout, or a hub id; from the latter two come the weights as well,
                but for the head.

        Raises:
            UserError: the name is unknown, or the model does not take these tokens.
        """
        known = TextClassificationTask.models
        shared = {**self.tokenizer.config(), **pretrained.label_config(self.labels)}
        if name in known:
            from gpu_pipelines.tasks.text_architectures import classifier

            model = classifier(name, shared, self.sequence_length)
        else:
            from transformers import AutoModelForSequenceClassification as Classifier

            if pretrained.is_configuration_alone(name):
                model = pretrained.from_configuration(Classifier, name, **shared)
            else:
                # A decoder used as a classifier looks for the last token that is not padding.
                changes = {**pretrained.label_config(self.labels), "pad_token_id": self.tokenizer.padding}
                model = pretrained.from_pretrained(Classifier, name, known, pretrained.is_outside_backbone, **changes)
        require_text_fits(name, model, self.tokenizer, self.sequence_length)
        _config_of(model).use_cache = False
        return model

    def load_exported(self, directory: Path) -> nn.Module:
        """Loads an exported model; every weight must be in the file and in the model."""
        from transformers import AutoModelForSequenceClassification

        return pretrained.load_exported(AutoModelForSequenceClassification, directory)

    def taking_over(self, directory: Path, model: nn.Module) -> tuple[TextClassification, nn.Module]:
        require_taken_over(directory, model, self.tokenizer, self.sequence_length)
        return self, model

    def batch(self, columns: dict[str, np.ndarray], device: torch.device) -> Batch:
        """Rows of a dataset as `input_ids`, `attention_mask` and `labels`, as long as the longest of these rows."""
        lengths = columns["length"]
        # The rows of a dataset can be shorter than what a registered model takes.
        width = trimmed_length(int(lengths.max()), columns["input_ids"].shape[1])
        mask = np.arange(width) < lengths[:, None]
        tensors = {"input_ids": columns["input_ids"][:, :width], "attention_mask": mask, "labels": columns["label"]}
        return {
            name: torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True).long()
            for name, values in tensors.items()
        }

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy of a batch, in nats."""
        return nn.functional.cross_entropy(_logits(model, batch), batch["labels"])

    def predict(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Class probabilities, float32 of shape (rows, classes)."""
        return _logits(model, batch).softmax(dim=-1)

    def export(self, model: nn.Module, directory: Path) -> None:
        """Writes config.json, model.safetensors and the tokenizer."""
        model.save_pretrained(directory)  # type: ignore[operator]
        self.tokenizer.copy_to(directory)


def _logits(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.float()


def _config_of(model: nn.Module) -> Any:
    return model.config

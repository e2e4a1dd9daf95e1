"""The recipe of token classification: Hugging Face encoders with a head for each token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks import pretrained
from gpu_pipelines.tasks.recipe import Batch, on_device
from gpu_pipelines.tasks.text_architectures import tagger
from gpu_pipelines.tasks.text_recipe import (
    NOT_SCORED,
    TextRecipe,
    encoder_logits,
    mean_of_scored,
    read_exported,
    require_dataset_of,
    require_taken_over,
    trimmed_length,
)
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer
from gpu_pipelines.tasks.token_classification.task import TokenClassificationTask


class TokenClassification(TextRecipe):
    """The recipe of the task `token_classification`.

    Args:
        tags: those of IOB2, by their number.
        tokenizer: what the rows were made with.
        sequence_length: tokens of the longest row.
    """

    models = TokenClassificationTask.models
    auto_class = TokenClassificationTask.auto_class

    def __init__(self, tags: list[str], tokenizer: TextTokenizer, sequence_length: int) -> None:
        super().__init__(tokenizer, sequence_length)
        self.tags = self.names = tags

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> TokenClassification:
        tokenizer = require_dataset_of(dataset, "token_classification", ("tokens", "tags"))
        said = dataset.manifest.preprocessing
        return cls(said["tags"], tokenizer, said["sequence_length"])

    @classmethod
    def for_exported(cls, directory: Path) -> TokenClassification:
        """The recipe that an exported model was trained with.

        Args:
            directory: the model, in Hugging Face layout.
        """
        return cls(*read_exported(directory))

    def untrained(self, name: str) -> nn.Module:
        return tagger(name, self.config(), self.sequence_length)

    def config(self) -> dict[str, Any]:
        return {**self.tokenizer.config(), **self.changes()}

    def changes(self) -> dict[str, Any]:
        return pretrained.label_config(self.tags)

    def taking_over(self, directory: Path, model: nn.Module) -> tuple[TokenClassification, nn.Module]:
        config: Any = model.config
        pretrained.require_numbered(directory, config.id2label, "Number them from 0, in the order of its outputs.")
        names = [config.id2label[number] for number in range(len(config.id2label))]
        if unknown := {tag[2:] for tag in self.tags} - {tag[2:] for tag in names}:
            raise UserError(f"The model in {directory} does not know the entities {', '.join(sorted(unknown))}.")
        require_taken_over(directory, model, self.tokenizer, self.sequence_length)
        return TokenClassification(names, self.tokenizer, self.sequence_length), model

    def batch(self, columns: dict[str, np.ndarray], device: torch.device) -> Batch:
        """Rows of a dataset as `input_ids`, `attention_mask` and `labels`, -100 where no word begins."""
        lengths = columns["tokens_length"]
        if lengths.max(initial=0) > self.sequence_length:
            longest = int(lengths.max())
            raise UserError(f"The model takes at most {self.sequence_length:,} tokens; a row has {longest:,}.")
        width = trimmed_length(int(lengths.max()), self.sequence_length)
        tokens = np.full((len(lengths), width), self.tokenizer.padding, dtype=np.int64)
        labels = np.full((len(lengths), width), NOT_SCORED, dtype=np.int64)
        here = min(width, columns["tokens"].shape[1])
        mask = np.arange(width) < lengths[:, None]
        tokens[:, :here] = np.where(mask[:, :here], columns["tokens"][:, :here], self.tokenizer.padding)
        tags = columns["tags"][:, :here]
        labels[:, :here] = np.where(tags > 0, tags - 1, NOT_SCORED)
        arrays = {"input_ids": tokens, "attention_mask": mask.astype(np.int64), "labels": labels}
        return {name: on_device(array, device) for name, array in arrays.items()}

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy of the words, in nats."""
        return mean_of_scored(encoder_logits(model, batch), batch["labels"], self.smoothing_of(model))

    def loss_tokens(self, columns: Mapping[str, Any]) -> int:
        """Number of words."""
        return int(np.count_nonzero(columns["tags"]))

    def predict(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Float32 (rows, tokens): for each token that begins a word the number of its tag, from 1; else 0."""
        logits, labels = encoder_logits(model, batch), batch["labels"]
        tags = torch.where(labels != NOT_SCORED, logits.argmax(dim=-1) + 1, 0)
        # A model that has diverged says nothing.
        return torch.where(logits.isfinite().all(dim=-1), tags.float(), torch.nan)

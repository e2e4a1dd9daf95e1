"""The recipe of token classification: Hugging Face encoders with a head for each token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.errors import UserError
from gpu_pipelines.tasks import pretrained
from gpu_pipelines.tasks.recipe import Batch, Recipe
from gpu_pipelines.tasks.text_rows import require_taken_over, require_text_fits, trimmed_length
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer
from gpu_pipelines.tasks.token_classification.task import TokenClassificationTask

NOT_SCORED = -100


class TokenClassification(Recipe):
    """The recipe of the task `token_classification`.

    Args:
        tags: those of IOB2, by their number.
        tokenizer: what the rows were made with.
        sequence_length: tokens of the longest row.
    """

    def __init__(self, tags: list[str], tokenizer: TextTokenizer, sequence_length: int) -> None:
        pretrained.quiet_transformers()
        self.tags = tags
        self.labels: list[str] = []
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> TokenClassification:
        manifest = dataset.manifest
        if not {"tokens", "tags"} <= set(manifest.features) or not manifest.tokenizer:
            raise UserError(
                f"The dataset {dataset.directory} was prepared for {manifest.task}; token_classification needs tags.",
                "Prepare it with task=token_classification.",
            )
        tokenizer = TextTokenizer.read(dataset.directory / manifest.tokenizer)
        return cls(manifest.preprocessing["tags"], tokenizer, manifest.preprocessing["sequence_length"])

    @classmethod
    def for_exported(cls, directory: Path) -> TokenClassification:
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
        known, of_tags = TokenClassificationTask.models, pretrained.label_config(self.tags)
        shared = {**self.tokenizer.config(), **of_tags}
        if name in known:
            model = _bert(name, shared, self.sequence_length)
        else:
            from transformers import AutoModelForTokenClassification as Auto

            if pretrained.is_configuration_alone(name):
                model = pretrained.from_configuration(Auto, name, **shared)
            else:
                model = pretrained.from_pretrained(Auto, name, known, pretrained.is_outside_backbone, **of_tags)
        require_text_fits(name, model, self.tokenizer, self.sequence_length)
        return model

    def load_exported(self, directory: Path) -> nn.Module:
        """Loads an exported model; every weight must be in the file and in the model."""
        from transformers import AutoModelForTokenClassification

        return pretrained.load_exported(AutoModelForTokenClassification, directory)

    def taking_over(self, directory: Path, model: nn.Module) -> tuple[TokenClassification, nn.Module]:
        config: Any = model.config
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
        return {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in arrays.items()}

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy of the words, in nats."""
        logits, labels = self.logits(model, batch), batch["labels"]
        total = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=NOT_SCORED, reduction="sum"
        )
        return total / (labels != NOT_SCORED).sum().clamp(min=1)

    def loss_terms(self, columns: Mapping[str, Any]) -> int:
        """Number of words."""
        return int(np.count_nonzero(columns["tags"]))

    def predict(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Float32 (rows, tokens): of each token that begins a word the number of its tag, from 1; else 0."""
        logits, labels = self.logits(model, batch), batch["labels"]
        tags = torch.where(labels != NOT_SCORED, logits.argmax(dim=-1) + 1, 0)
        # A model that has diverged says nothing.
        return torch.where(logits.isfinite().all(dim=-1), tags.float(), torch.nan)

    def export(self, model: nn.Module, directory: Path) -> None:
        """Writes config.json, model.safetensors and the tokenizer."""
        model.save_pretrained(directory)  # type: ignore[operator]
        self.tokenizer.copy_to(directory)

    @staticmethod
    def logits(model: nn.Module, batch: Batch) -> torch.Tensor:
        """What the model gives for each token, float32 (rows, tokens, tags)."""
        return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.float()


def _bert(name: str, shared: dict[str, Any], longest: int) -> nn.Module:
    from transformers.models.bert import BertConfig, BertForTokenClassification

    micro = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": longest,
    }
    # The rest of the defaults is bert-base-uncased.
    return BertForTokenClassification(BertConfig(**(micro if name == "bert-micro" else {}), **shared))

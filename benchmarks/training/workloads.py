"""The workloads of the benchmarks: synthetic data in the dataset format, and model and settings of all contenders."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Feature
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.training.settings import TrainingSettings

CLASSES = 10
VAL_ROWS = 8
TOKENIZER = "tokenizer"


@dataclass(frozen=True)
class Workload:
    """A model, its data and its batch.

    Attributes:
        name: the name in tables.
        task: the task of the dataset.
        model: name of an architecture; unused if `configuration` is given.
        shape: the shape of one row: channels, height, width; or tokens.
        rows: training rows.
        batch: global batch size.
        vocabulary: the number of tokens, for text.
        configuration: entries of a config.json.
        steps: steps of one run, unless given on the command line.
    """

    name: str
    task: str
    model: str
    shape: tuple[int, ...]
    rows: int
    batch: int
    vocabulary: int = 0
    configuration: dict[str, Any] | None = None
    steps: int = 160

    def prepare(self, folder: Path) -> tuple[Path, str]:
        """Writes the dataset below `folder`; returns its place and the value for `model`."""
        dataset = folder / f"{self.name} data"
        write_dataset(dataset, self.task, self.shape, self.rows, self.vocabulary)
        if self.configuration is None:
            return dataset, self.model
        model = folder / f"{self.name} model"
        model.mkdir(parents=True, exist_ok=True)
        # Without dropout, so that the same rows in the same order give the same loss.
        content = dict(self.configuration)
        if self.task == "causal_lm":
            content |= {"model_type": "gpt2", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
            content |= {"n_positions": self.shape[0], "vocab_size": self.vocabulary}
        (model / "config.json").write_text(json.dumps(content), encoding="utf-8")
        return dataset, str(model)

    def settings(self, model: str, steps: int, checkpoint_every: int) -> TrainingSettings:
        """The settings of all contenders."""
        return TrainingSettings(
            model=model,
            max_steps=steps,
            learning_rate=1e-3,
            global_batch_size=self.batch,
            warmup_steps=10,
            checkpoint_every_steps=checkpoint_every,
        ).resolved(self.task)


_TINY_VIT = {
    "model_type": "vit",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 32,
    "patch_size": 8,
}
_SMALL_GPT = {"n_layer": 4, "n_embd": 128, "n_head": 4}
_GPT2 = {"n_layer": 12, "n_embd": 768, "n_head": 12}
WORKLOADS = {
    "cpu": (
        Workload("ViT", "image_classification", "", (3, 32, 32), 8192, 64, configuration=_TINY_VIT, steps=600),
        Workload("GPT", "causal_lm", "", (128,), 2048, 16, 2000, _SMALL_GPT),
    ),
    "cuda": (
        Workload("ViT", "image_classification", "vit-base", (3, 224, 224), 2048, 256),
        Workload("GPT", "causal_lm", "", (1024,), 2048, 32, 32_000, _GPT2),
    ),
}


def write_dataset(
    directory: Path, task: str, shape: tuple[int, ...], rows: int, vocabulary: int = 0, documents: int = 1
) -> None:
    """Writes a dataset of random rows that can be learned a little, the same each time.

    Args:
        directory: the destination.
        task: image_classification, text_classification or causal_lm.
        shape: the shape of one row: channels, height, width; or tokens.
        rows: training rows; `val` and `test` are tiny.
        vocabulary: the number of tokens, for text.
        documents: consecutive documents in each row of causal_lm.
    """
    random = np.random.default_rng(0)
    is_text, is_causal = task != "image_classification", task == "causal_lm"
    if is_text:
        write_tokenizer(directory / TOKENIZER, vocabulary)
    features = {
        "image_classification": {"image": Feature("uint8", shape), "label": Feature("int32")},
        "text_classification": {
            "input_ids": Feature("int32", shape),
            "length": Feature("int32"),
            "label": Feature("int32"),
        },
        "causal_lm": {
            "input_ids": Feature("int32", shape),
            "loss_mask": Feature("uint8", shape),
            "position_ids": Feature("int32", shape),
        },
    }[task]
    preprocessing = (
        {"sequence_length": shape[0], "packing": is_causal}
        if is_text
        else {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    )
    with DatasetWriter(
        directory,
        task=task,
        source="synthetic",
        features=features,
        labels=[] if is_causal else [str(label) for label in range(CLASSES)],
        preprocessing=preprocessing,
        tokenizer=TOKENIZER if is_text else None,
        packed=is_causal,
    ) as writer:
        for number in range(rows + 2 * VAL_ROWS):
            split = "train" if number < rows else "val" if number < rows + VAL_ROWS else "test"
            writer.add(split, str(number), _row(task, shape, vocabulary, number % CLASSES, random, documents))
        writer.finish()


def _row(
    task: str, shape: tuple[int, ...], vocabulary: int, label: int, random: np.random.Generator, documents: int
) -> dict[str, np.ndarray | int]:
    if task == "image_classification":
        image = random.integers(0, 128, shape) + 12 * label
        return {"image": image.astype(np.uint8), "label": label}
    # Small tokens are frequent, as in real text.
    tokens = 3 + (random.random(shape) ** 3 * (vocabulary - 3)).astype(np.int32)
    if task == "text_classification":
        tokens[: shape[0] // 4] = 3 + label
        return {"input_ids": tokens, "length": int(random.integers(shape[0] // 2, shape[0] + 1)), "label": label}
    places = np.concatenate([np.arange(len(part)) for part in np.array_split(tokens, documents)]).astype(np.int32)
    return {"input_ids": tokens, "loss_mask": np.ones(shape, np.uint8), "position_ids": places}


def write_tokenizer(directory: Path, vocabulary: int) -> None:
    """Writes a tokenizer of this many made-up words in Hugging Face layout."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    directory.mkdir(parents=True, exist_ok=True)
    words = {word: number for number, word in enumerate(["<pad>", "<end>", "<unknown>"])}
    words |= {f"word{number}": number for number in range(3, vocabulary)}
    Tokenizer(WordLevel(words, unk_token="<unknown>")).save(str(directory / "tokenizer.json"))
    names = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unknown>"}
    text = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1_000_000, **names})
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")

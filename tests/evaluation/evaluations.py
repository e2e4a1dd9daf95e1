"""Small datasets, checkpoints and recipes for the tests of the evaluation."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import save_torch_model
from safetensors.torch import save_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from gpu_pipelines.artifacts.checkpoint import checkpoint_path, mark_complete, write_configuration
from gpu_pipelines.artifacts.dataset import Dataset, Feature
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.artifacts.image_features import ImageGeometry
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.tasks.building import build_model, load_recipe
from gpu_pipelines.tasks.checkpoint_state import frozen_weights_sha256, save_state, trained_weights
from gpu_pipelines.tasks.recipe import Recipe

ROWS = {"train": 8, "val": 30, "test": 40}
SLOPES = np.array([2.0, -1.0, 0.5])
LENGTH = 16


class Regression(Recipe):
    """A user's own recipe for a task that is not one of `TASKS`; its loss is half the square of the error."""

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> Regression:
        return cls()

    def build_model(self, name: str) -> nn.Module:
        return nn.Linear(3, 1)

    def batch(self, columns: dict[str, Any], device: torch.device) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(values).to(device) for name, values in columns.items()}

    def loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.predict(model, batch)[:, 0].mean()

    def predict(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        losses = (model(batch["inputs"])[:, 0] - batch["target"]) ** 2 / 2
        return torch.stack([losses, torch.ones_like(losses), torch.full_like(losses, torch.nan)], dim=1)

    def export(self, model: nn.Module, directory: Path) -> None:
        save_model(model, str(directory / "model.safetensors"))
        (directory / "config.json").write_text("{}")


class _OwnClassifier(Recipe):
    """A user's own recipe for a task of this program; its batches are of a form that no other recipe knows."""

    def __init__(self, labels: list[str], size: int) -> None:
        self.labels, self.size = labels, size

    def build_model(self, name: str) -> nn.Module:
        return nn.Linear(self.size, len(self.labels))

    def loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch["inputs"]), batch["classes"])

    def predict(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(batch["inputs"]).softmax(dim=-1)

    def export(self, model: nn.Module, directory: Path) -> None:
        save_model(model, str(directory / "model.safetensors"))
        (directory / "config.json").write_text("{}")


class OwnImages(_OwnClassifier):
    @classmethod
    def for_dataset(cls, dataset: Dataset) -> OwnImages:
        return cls(dataset.manifest.labels, int(np.prod(dataset.manifest.features["image"].shape)))

    def batch(self, columns: dict[str, Any], device: torch.device) -> dict[str, torch.Tensor]:
        images = torch.from_numpy(columns["image"]).to(device).flatten(1).float() / 255
        return {"inputs": images, "classes": torch.from_numpy(columns["label"]).long()}


class OwnTexts(_OwnClassifier):
    """Counts words."""

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> OwnTexts:
        return cls(dataset.manifest.labels, 40)

    def batch(self, columns: dict[str, Any], device: torch.device) -> dict[str, torch.Tensor]:
        words = [np.bincount(r[:n], minlength=40) for r, n in zip(columns["input_ids"], columns["length"], strict=True)]
        counts = torch.from_numpy(np.stack(words)).to(device).float()
        return {"inputs": counts, "classes": torch.from_numpy(columns["label"]).long()}


class Tied(nn.Module):
    """A model in which two modules share a weight."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, 8, bias=False)
        self.again = nn.Linear(inputs, 8, bias=False)
        self.again.weight = self.first.weight
        self.last = nn.Linear(8, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(inputs) + self.again(inputs))


class InSeveralFiles(OwnImages):
    """Writes its model as huggingface_hub splits large ones: several files of weights, and their index."""

    def build_model(self, name: str) -> nn.Module:
        return Tied(self.size, len(self.labels))

    def export(self, model: nn.Module, directory: Path) -> None:
        save_torch_model(model, directory, max_shard_size=1000)
        (directory / "config.json").write_text("{}")


class FailsOnRows(OwnImages):
    """Reads these rows once; as a champion it is given them again, and fails."""

    def batch(self, columns: dict[str, Any], device: torch.device) -> dict[str, torch.Tensor]:
        if "FAIL" in os.environ:
            raise IndexError("channel 3 is out of range")
        return super().batch(columns, device)


class WrongShape(Regression):
    """Its predictions are what no task is scored by."""

    def predict(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return super().predict(model, batch)[:, :2]


class AwaitsTheOther(Regression):
    """In the process that evaluates it waits until the other one has begun; that one leaves a mark, and goes on."""

    def predict(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        mark = Path(os.environ["MARK"])
        if multiprocessing.parent_process() is None:
            deadline = time.monotonic() + 120
            while not mark.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        elif not mark.exists():
            mark.write_text(str(os.getpid()))
            self.go_on()
        return super().predict(model, batch)

    def go_on(self) -> None:
        """What the other process does then."""


class KilledInTheOther(AwaitsTheOther):
    def go_on(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class FailsInTheOther(AwaitsTheOther):
    def go_on(self) -> None:
        raise RuntimeError("the device is gone\nand more")


def numbers_dataset(directory: Path, task: str = "own_numbers") -> Dataset:
    """Numbers with a target that is a linear function of them."""
    generator = np.random.default_rng(0)
    features = {"inputs": Feature("float32", (3,)), "target": Feature("float32")}
    with DatasetWriter(
        directory, task=task, source="numbers.csv", features=features, labels=[], preprocessing={}
    ) as writer:
        for split, rows in ROWS.items():
            for inputs in generator.normal(size=(rows, 3)).astype(np.float32):
                writer.add(split, "numbers.csv", {"inputs": inputs, "target": np.float32(inputs @ SLOPES)})
        writer.finish()
    return Dataset(directory)


def write_tokenizer(directory: Path, words: int = 40) -> None:
    """A tokenizer of the words w0, w1 … in Hugging Face layout."""
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = {"<end>": 0, **{f"w{number}": number + 1 for number in range(words - 1)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "model_max_length": LENGTH}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def text_dataset(directory: Path, words: int = 40) -> Dataset:
    """Rows of counting, each token one more than that before it, of which the last 5 to 15 are scored."""
    write_tokenizer(directory / "tokenizer", words)
    generator = np.random.default_rng(0)
    features = {
        "input_ids": Feature("int32", (LENGTH,)),
        "loss_mask": Feature("uint8", (LENGTH,)),
        "position_ids": Feature("int32", (LENGTH,)),
    }
    with DatasetWriter(
        directory,
        task="causal_lm",
        source="counting.txt",
        features=features,
        labels=[],
        preprocessing={},
        tokenizer="tokenizer",
    ) as writer:
        for split, rows in ROWS.items():
            for first, scored in zip(generator.integers(1, 20, rows), generator.integers(5, 16, rows), strict=True):
                row = {
                    "input_ids": (first + np.arange(LENGTH)).astype(np.int32),
                    "loss_mask": (np.arange(LENGTH) >= LENGTH - scored).astype(np.uint8),
                    "position_ids": np.arange(LENGTH, dtype=np.int32),
                }
                writer.add(split, "counting.txt", row)
        writer.finish()
    return Dataset(directory)


def classes_dataset(directory: Path) -> Dataset:
    """Short texts with a class that has nothing to do with them."""
    write_tokenizer(directory / "tokenizer")
    generator = np.random.default_rng(0)
    features = {"input_ids": Feature("int32", (LENGTH,)), "length": Feature("int32"), "label": Feature("int32")}
    with DatasetWriter(
        directory,
        task="text_classification",
        source="texts.csv",
        features=features,
        labels=["good", "bad"],
        preprocessing={},
        tokenizer="tokenizer",
    ) as writer:
        for split, rows in ROWS.items():
            for number in range(rows):
                tokens = generator.integers(1, 40, LENGTH).astype(np.int32)
                row = {"input_ids": tokens, "length": int(generator.integers(2, LENGTH)), "label": number % 2}
                writer.add(split, f"texts.csv:{number}", row)
        writer.finish()
    return Dataset(directory)


def images_dataset(directory: Path, labels: tuple[str, ...] = ("dark", "bright"), shuffled: bool = False) -> Dataset:
    """Noisy images, dark and bright ones; `shuffled` gives each a class that has nothing to do with it."""
    generator = np.random.default_rng(0)
    geometry = ImageGeometry(16, "L")
    features = {"image": Feature("uint8", geometry.shape), "label": Feature("int32")}
    with DatasetWriter(
        directory,
        task="image_classification",
        source="photos",
        features=features,
        labels=labels,
        preprocessing=geometry.preprocessing(),
    ) as writer:
        for split, rows in {**ROWS, "train": 60, "test": 113}.items():
            for number in range(rows):
                image = generator.integers(0, 128, geometry.shape) + 100 * (number % len(labels))
                label = int(generator.integers(0, len(labels))) if shuffled else number % len(labels)
                writer.add(split, f"{number}.png", {"image": image.astype(np.uint8), "label": label})
        writer.finish()
    return Dataset(directory)


def write_brightness(directory: Path, dataset: Dataset, threshold: float = 0.45, recipe: str = "OwnImages") -> None:
    """The checkpoint of a model that tells bright images from dark ones by their mean."""
    settings = {"model": "mean", "recipe": f"evaluations:{recipe}", "seed": 0}
    directory.mkdir()
    write_configuration(directory, {"task": dataset.manifest.task, "settings": settings, "devices": {}})
    model = nn.Linear(256, 2)
    with torch.no_grad():
        model.weight.copy_(torch.stack([torch.zeros(256), torch.full((256,), 20 / 256)]))
        model.bias.copy_(torch.tensor([20 * threshold, 0.0]))
    write_checkpoint(directory, 1, model, dataset)


def train_classes(directory: Path, dataset: Dataset) -> None:
    """The checkpoint of a classifier that has not been trained."""
    train_checkpoint(directory, dataset, "text_classification", "bert-micro")


def train_checkpoint(directory: Path, dataset: Dataset, task: str, model: str, recipe: str = "") -> None:
    """The checkpoint of a model that has not been trained."""
    settings = {"model": model, "seed": 0, **({"recipe": f"evaluations:{recipe}"} if recipe else {})}
    directory.mkdir()
    write_configuration(directory, {"task": task, "settings": settings, "devices": {}})
    write_checkpoint(
        directory, 1, build_model(load_recipe(settings.get("recipe", ""), task).for_dataset(dataset), settings), dataset
    )


def write_checkpoint(directory: Path, step: int, model: nn.Module, dataset: Dataset, **info: Any) -> None:
    """A checkpoint as training writes it: what is trained, and the marker."""
    path = checkpoint_path(directory, step)
    path.mkdir(parents=True)
    # Copies, as the engine takes them: tied weights would share memory, which the format does not have.
    save_state({"model": {name: tensor.clone() for name, tensor in trained_weights(model).items()}}, path)
    mark_complete(
        path,
        step=step,
        epoch=step / 10,
        samples_seen=step,
        world_size=1,
        dataset_fingerprint=dataset.manifest.fingerprint,
        configuration_hash="",
        frozen_weights_sha256=frozen_weights_sha256(model),
        **info,
    )


def write_regressions(directory: Path, dataset: Dataset, errors: list[float], recipe: str = "Regression") -> None:
    """Checkpoints of the linear model whose slopes are off by so much."""
    settings = {"model": "linear", "recipe": f"evaluations:{recipe}", "global_batch_size": 8}
    directory.mkdir()
    devices = {"kind": "cpu", "processes": 2}
    write_configuration(directory, {"task": dataset.manifest.task, "settings": settings, "devices": devices})
    for number, error in enumerate(errors, start=1):
        model = nn.Linear(3, 1)
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(SLOPES + error)[None])
            model.bias.zero_()
        write_checkpoint(directory, 10 * number, model, dataset)


def settings_in(folder: Path, **given: Any) -> EvaluationSettings:
    """Settings with a registry of the test's own."""
    return EvaluationSettings(**{"registry": str(folder / "registry"), "model_name": "mine", **given})

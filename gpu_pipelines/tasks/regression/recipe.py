"""The recipe of regression: the mean and the spread of each number, by any model of images, texts or numbers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch import nn

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification
from gpu_pipelines.tasks.image_classification.task import ImageClassificationTask
from gpu_pipelines.tasks.inner_recipe import OuterRecipe, inner_recipe, inputs_in
from gpu_pipelines.tasks.recipe import Batch, on_device
from gpu_pipelines.tasks.regression.task import INPUT, TARGET
from gpu_pipelines.tasks.text_classification.recipe import TextClassification
from gpu_pipelines.tasks.text_classification.task import TextClassificationTask
from gpu_pipelines.tasks.text_recipe import encoder_logits

#: The share of rows whose number a prediction interval is to hold, and where it ends, in standard deviations.
LEVEL = 0.9
QUANTILE = NormalDist().inv_cdf((1 + LEVEL) / 2)
#: Of the logarithm of a variance; beyond that the loss of a single row outweighs all others.
MOST_LOG_VARIANCE = 10.0
HIDDEN = 128


@dataclass(frozen=True)
class Form:
    """What a model of numbers has to know about its training data; kept in its config.json.

    Attributes:
        kind: `image`, `text` or `numbers`: its inputs.
        targets: names of the numbers that it predicts.
        mean, deviation: of each of them, over the rows of train.
        inputs: for numbers, the names of its inputs.
        inputs_mean, inputs_deviation: of each of them, over the rows of train.
    """

    kind: str
    targets: list[str]
    mean: list[float]
    deviation: list[float]
    inputs: list[str]
    inputs_mean: list[float]
    inputs_deviation: list[float]

    @property
    def outputs(self) -> list[str]:
        """The model's outputs: the mean of each number, and the logarithm of its variance."""
        return [*self.targets, *(f"log variance of {name}" for name in self.targets)]


class Regression(OuterRecipe):
    """The recipe of the task `regression`.

    Args:
        form: of the data.
        inner: the recipe that makes models and batches of images or texts; None for numbers.
    """

    def __init__(self, form: Form, inner: Any = None) -> None:
        self.form = form
        self.inner = inner
        self.has_one_shape = getattr(inner, "has_one_shape", False)
        self.labels: list[str] = []
        self._mean, self._deviation = torch.tensor(form.mean), torch.tensor(form.deviation)

    @classmethod
    def for_dataset(cls, dataset: Dataset) -> Regression:
        manifest = dataset.manifest
        if TARGET not in manifest.features:
            raise UserError(
                f"The dataset {dataset.directory} was prepared for {manifest.task}; regression needs numbers to learn.",
                "Prepare it with task=regression.",
            )
        said = manifest.preprocessing
        names = list(said.get("inputs", []))
        kind = "image" if "image" in manifest.features else "text" if manifest.tokenizer else "numbers"
        inputs = _spread(dataset, [f"{INPUT}{name}" for name in names])
        form = Form(kind, list(said["targets"]), *_spread(dataset, [TARGET]), names, *inputs)
        return cls(form, inner_recipe(dataset, form.outputs, "targets"))

    @classmethod
    def for_exported(cls, directory: Path) -> Regression:
        """The recipe that an exported model was trained with.

        Args:
            directory: the model, in Hugging Face layout.
        """
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        form = Form(**config["regression"])
        inner: Any = {"image": ImageClassification, "text": TextClassification}.get(form.kind)
        return cls(form, inner and inner.for_exported(directory))

    def build_model(self, name: str) -> nn.Module:
        """Builds the model to train.

        Args:
            name: of numbers `linear`, `mlp-small` or the directory of an exported model of the same numbers, which then
                gives for each row what it gave before; of images and texts one of the architectures of the task, a
                directory with a config.json alone, a local directory in Hugging Face layout, or a hub id; from the
                latter two come the weights as well, but for the head.

        Raises:
            UserError: there is no such model for these inputs, or it does not fit the data.
        """
        if self.inner is not None and name not in _OF_NUMBERS:
            return self.inner.build_model(name)
        if self.inner is None and name in _OF_NUMBERS:
            return _OF_NUMBERS[name](len(self.form.inputs), len(self.form.outputs))
        if self.inner is None and (Path(name).expanduser() / "config.json").is_file():
            return self._continued(Path(name).expanduser())
        task: Any = ImageClassificationTask if self.form.kind == "image" else TextClassificationTask
        raise UserError(
            f"The model {name!r} cannot learn from what this dataset has ({self.form.kind}).",
            nearest(name, _OF_NUMBERS if self.inner is None else task.models),
        )

    def load_exported(self, directory: Path) -> nn.Module:
        """Loads an exported model; every weight must be in the file and in the model.

        Args:
            directory: the model, in Hugging Face layout.
        """
        if self.inner is not None:
            return self.inner.load_exported(directory)
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        model = self.build_model(config["architecture"])
        load_model(model, directory / "model.safetensors")
        return model

    def _continued(self, directory: Path) -> nn.Module:
        """A model of numbers that was exported, for the means and deviations of this data."""
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        theirs = Form(**config["regression"]) if "regression" in config else None
        if theirs is None or (theirs.inputs, theirs.targets) != (self.form.inputs, self.form.targets):
            found = f"{', '.join(theirs.inputs)} → {', '.join(theirs.targets)}" if theirs else "not of regression"
            raise UserError(
                f"The model in {directory} does not fit this dataset: it is {found}, and the data is "
                f"{', '.join(self.form.inputs)} → {', '.join(self.form.targets)}.",
                "Start with linear or mlp-small.",
            )
        if torch.get_default_device().type == "meta":  # another process has the weights
            return self.build_model(config["architecture"])
        model = self.load_exported(directory)
        _restate(model, theirs, self.form)
        return model

    def batch(self, columns: dict[str, np.ndarray], device: torch.device) -> Batch:
        """The model's inputs, and `target`, in standard deviations from the mean; float32 (rows, targets)."""
        target = (columns[TARGET] - np.array(self.form.mean)) / np.array(self.form.deviation)
        made = {TARGET: on_device(target.astype(np.float32), device)}
        if self.inner is not None:
            return {**inputs_in(self.inner, columns, device), **made}
        numbers = np.stack([columns[f"{INPUT}{name}"] for name in self.form.inputs], axis=1).astype(np.float64)
        numbers = (numbers - np.array(self.form.inputs_mean)) / np.array(self.form.inputs_deviation)
        return {"inputs": on_device(numbers.astype(np.float32), device), **made}

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean negative log likelihood of normal distributions, each weighted by its standard deviation.

        Without the weight a model that is unsure of a row never learns it: Seitzer et al., ICLR 2022,
        https://arxiv.org/abs/2203.09168, equation 5 with β = 0.5.
        """
        mean, log_variance = self._outputs(model, batch)
        likelihood = (log_variance + (batch[TARGET] - mean) ** 2 / log_variance.exp()) / 2
        return (likelihood * (log_variance / 2).exp().detach()).mean()

    def predict(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Float32 (rows, 3 × targets): the numbers, and where their intervals begin and end."""
        mean, log_variance = self._outputs(model, batch)
        deviation, middle = self._deviation.to(mean.device), self._mean.to(mean.device)
        value, half = mean * deviation + middle, QUANTILE * (log_variance / 2).exp() * deviation
        return torch.cat([value, value - half, value + half], dim=1)

    def export(self, model: nn.Module, directory: Path) -> None:
        """Writes config.json, model.safetensors, and tokenizer or preprocessor."""
        path, config = directory / "config.json", {}
        if self.inner is not None:
            self.inner.export(model, directory)
            config = json.loads(path.read_text(encoding="utf-8"))
        else:
            save_model(model, str(directory / "model.safetensors"))
            config = {"model_type": "regression", "architecture": _name_of(model)}
        text = json.dumps({**config, "regression": asdict(self.form)}, indent=2) + "\n"
        path.write_text(text, encoding="utf-8")

    def _outputs(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        if self.form.kind == "text":
            found = encoder_logits(model, batch)
        else:
            given = {name: values for name, values in batch.items() if name != TARGET}
            found = model(batch["inputs"]) if self.inner is None else model(**given).logits
        mean, log_variance = found.float().chunk(2, dim=1)
        return mean, log_variance.clamp(-MOST_LOG_VARIANCE, MOST_LOG_VARIANCE)


def _linear(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs))


def _perceptron(inputs: int, outputs: int) -> nn.Module:
    first, second = (nn.Linear(inputs, HIDDEN), nn.GELU()), (nn.Linear(HIDDEN, HIDDEN), nn.GELU())
    return nn.Sequential(*first, *second, nn.Linear(HIDDEN, outputs))


_OF_NUMBERS = {"linear": _linear, "mlp-small": _perceptron}


def _name_of(model: Any) -> str:
    return "linear" if len(model) == 1 else "mlp-small"


@torch.no_grad()
def _restate(model: Any, before: Form, now: Form) -> None:
    """Lets a model that was trained with other means and deviations give the same numbers with these."""
    mean, deviation, mean_now, deviation_now = (
        torch.tensor(values, dtype=torch.float64)
        for values in (before.inputs_mean, before.inputs_deviation, now.inputs_mean, now.inputs_deviation)
    )
    first, last = model[0], model[-1]
    first.bias += (first.weight.double() @ ((mean_now - mean) / deviation)).float()
    first.weight *= (deviation_now / deviation).float()
    mean, deviation, mean_now, deviation_now = (
        torch.tensor(values, dtype=torch.float64) for values in (before.mean, before.deviation, now.mean, now.deviation)
    )
    scale, targets = deviation / deviation_now, len(mean)
    last.weight[:targets] *= scale.float()[:, None]
    last.bias[:targets] = (last.bias[:targets] * scale + (mean - mean_now) / deviation_now).float()
    last.bias[targets:] += 2 * scale.log().float()


def _spread(dataset: Dataset, names: list[str]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation over the rows of train of features, each of one or more numbers."""
    found = [dataset.moments("train", name) for name in names]
    return [mean for each in found for mean in each.mean], [value for each in found for value in each.deviation]

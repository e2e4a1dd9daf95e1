"""The port of recipes: the part of a training that depends on the task. A user's own recipe subclasses `Recipe`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpu_pipelines.artifacts.dataset import Dataset

Batch = dict[str, torch.Tensor]
#: Columns of rows whose image was mixed with another one: the label of the other image, int, and its share, float32.
#: A recipe with `mixes` gets them in training if the user asked for mixing.
OTHER_LABEL, OTHER_SHARE = "label_of_other", "share_of_other"
#: Output of the model for each row before the first step, float32; a column of the rows of a recipe with a reference.
REFERENCE = "reference"
#: Result of the recipe's `sums` over all rows of the step; in the batches of a recipe with `has_sums`.
SUMS = "sums_of_step"


def on_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """An array as a tensor on a device: for a GPU through pinned memory, from which it is copied in the background.

    Args:
        array: of any shape and a type that torch has.
        device: where the tensor goes.

    Returns:
        A tensor of the same shape and type.
    """
    tensor = torch.from_numpy(array)
    # PyTorch keeps the pinned memory until the copy is done, and for the next one.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Recipe(ABC):
    """Turns rows into batches, batches into a loss, and a trained model into files that other tools can open.

    The training engine owns everything else: processes, devices, precision, optimizer, checkpoints. Each process has
    one instance. It must not depend on the rank, and must draw random numbers only in `build_model`, before which the
    engine seeds torch's generator with the same value in all processes.

    Attributes:
        smooths: whether `loss` uses `smoothing_of`; otherwise `label_smoothing` is refused.
        mixes: whether `batch` and `loss` use the columns `OTHER_LABEL` and `OTHER_SHARE` of rows that have them;
            otherwise `mixup_alpha` and `cutmix_alpha` are refused.
        has_one_shape: whether all batches with the same number of rows have the same shapes, as with images; then long
            trainings on GPUs are compiled.
        label_smoothing: the parameter of the training, set by the engine.
        attention: the parameter of the training, set by the engine.
        names: names of the model's outputs if the dataset has no `labels`, such as the classes of a task whose rows
            have several; empty if they have no names.
    """

    smooths: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    has_one_shape: bool = False
    label_smoothing: float = 0.0
    attention: str = "auto"
    names: Sequence[str] = ()

    @classmethod
    @abstractmethod
    def for_dataset(cls, dataset: Dataset) -> Self:
        """The recipe for a dataset: its labels, shapes, tokenizer.

        Args:
            dataset: written by prepare_data.

        Raises:
            UserError: the recipe cannot be trained on the dataset.
        """

    @abstractmethod
    def build_model(self, name: str) -> nn.Module:
        """Builds the model in fp32 on the CPU, the same bits in every process.

        Args:
            name: the parameter `model`: a name that the recipe knows, a local directory, a hub id.

        Raises:
            UserError: there is no such model, or it does not fit the data.
        """

    @abstractmethod
    def batch(self, columns: dict[str, Any], device: torch.device) -> Batch:
        """Rows of the dataset as tensors on `device`. In training, a thread calls it ahead of the steps.

        Args:
            columns: numpy arrays of shape (rows, *feature shape) by feature; they may be kept, nobody else uses them.
            device: where the tensors go; use `on_device`, so that nobody waits for the copies.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The loss of a batch, a mean over its rows unless `loss_tokens` says otherwise, in nats; 0-d float32.

        Args:
            model: call it once; it may be a wrapper of the model that `build_model` returned.
            batch: made by `batch`.
        """

    def trained_with(self, settings: Mapping[str, Any]) -> None:  # noqa: B027 (most need not know)
        """Takes the parameters of the training, before the model is built.

        Args:
            settings: values by the names of the parameters.

        Raises:
            UserError: they do not fit the data.
        """

    @property
    def has_reference(self) -> bool:
        """Whether the loss uses the model's output for a row before the first step: the column `REFERENCE`."""
        return False

    def reference(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The column `REFERENCE` of rows of train and val, kept before the first step, float32 (rows, columns).

        Args:
            model: with the weights that the training begins with.
            batch: from `batch`.
        """
        raise NotImplementedError

    @property
    def has_sums(self) -> bool:
        """Whether the loss of a row depends on all rows of its step: `SUMS` in its batch."""
        return False

    def sums(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Sums of a batch, added up over micro-batches and processes before the loss of the step, float32 (columns,).

        It is called without a gradient, in training and in validation, with the same batches as `loss`.

        Args:
            model: with the weights before the step.
            batch: from `batch`.
        """
        raise NotImplementedError

    def rows_of(self, batch: Batch) -> int:
        """Number of rows of a batch.

        Args:
            batch: from `batch`.
        """
        return len(next(iter(batch.values())))

    def smoothing_of(self, model: nn.Module) -> float:
        """The share of a target that is spread over all classes: `label_smoothing` in training, else 0.

        Args:
            model: the model of the loss.
        """
        return self.label_smoothing if model.training else 0.0

    def loss_tokens(self, columns: Mapping[str, Any]) -> int | None:
        """Number of items that the `loss` of these rows is a mean over, such as unmasked tokens; None for the rows.

        Batches are split over processes and micro-batches. With this count the gradient is that of the mean over all
        loss tokens of the global batch, however it is split. A batch without any must have a loss of 0, not NaN.

        Args:
            columns: rows of the dataset, by column.
        """
        return None

    @abstractmethod
    def predict(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Predictions for the evaluation, float32 on any device.

        The task's `Scoring` defines them. For a classifier they are class probabilities of shape (rows, classes). For a
        task without a scoring of its own they are (rows, 3): sum of a row's losses in nats, number of its loss tokens,
        and how many of these were predicted right (NaN if that has no meaning).

        Args:
            model: the model to score, without gradients.
            batch: from `batch`.
        """

    @abstractmethod
    def export(self, model: nn.Module, directory: Path) -> None:
        """Writes the model in Hugging Face layout: config.json, model.safetensors, tokenizer or preprocessor.

        Args:
            model: the trained model, with all its weights.
            directory: where its files go.
        """

    def taking_over(self, directory: Path, model: nn.Module) -> tuple[Recipe, nn.Module]:
        """A model that another program trained, and the recipe that predicts rows of this dataset with it.

        Args:
            directory: the model's directory, in Hugging Face layout.
            model: loaded by `load_exported` of this recipe.

        Raises:
            UserError: it does not fit the data.
        """
        return self, model

    def complete(self, directory: Path) -> None:  # noqa: B027 (few models lack something)
        """Adds to the files of a model that was taken over what they do not say of its inputs.

        Args:
            directory: a copy of the model.
        """

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The repeated layers of a model: the units in which it is sharded and its activations are recomputed.

        By default these are the innermost modules that a Hugging Face model says must not be split
        (`_no_split_modules`), else the members of the `nn.ModuleList` with the most parameters, also if they are in
        nested lists, as the layers in the stages of a PVT are.

        Args:
            model: from `build_model`.
        """
        return usual_blocks(model)


def usual_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated layers of a model, as `Recipe.blocks` has them by default."""
    named = set(getattr(model, "_no_split_modules", None) or ())
    found = [module for module in model.modules() if type(module).__name__ in named]
    if found:
        holders = {
            id(module) for module in found for inner in module.modules() if inner in found and inner is not module
        }
        return [module for module in found if id(module) not in holders]
    lists = [_layers(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max((each for each in lists if len(each) > 1), key=_parameters, default=[])


def require_blocks(model: nn.Module, blocks: Sequence[nn.Module], decay: float) -> None:
    """Checks that learning rates can fall from layer to layer of a model.

    Args:
        model: as built, with or without weights.
        blocks: its repeated layers.
        decay: the parameter `layer_decay`, not 0.

    Raises:
        UserError: it has none, or shares one, as ALBERT does.
    """
    if not blocks:
        raise UserError(
            f"layer_decay is {decay:g}, and {type(model).__name__} has no repeated layers with weights of their own.",
            "Leave it at 0. A recipe of your own can name the layers of its model (`blocks`).",
        )


def _layers(module: nn.Module) -> list[nn.Module]:
    """A module, or what is in it where it is a list, which is nothing that can be called."""
    return [layer for each in module for layer in _layers(each)] if isinstance(module, nn.ModuleList) else [module]


def _parameters(modules: list[nn.Module]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())

"""What a recipe is: the part of a training that depends on what is trained. A user's own is a subclass of `Recipe`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from typing_extensions import Self

    from gpu_pipelines.artifacts.dataset import Dataset

Batch = dict[str, torch.Tensor]
#: Columns of rows whose image was mixed with another one: the label of that one, int, and its share of the image,
#: float32. A recipe with `mixes` gets them in training, where the user asked for it.
OTHER_LABEL, OTHER_SHARE = "label_of_other", "share_of_other"
#: What the model gave for each row before the first step, float32; a column of the rows of a recipe with a reference.
REFERENCE = "reference"
#: What `sums` of a recipe gives, of all rows of the step together; in the batches of a recipe that has them.
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

    The training engine owns everything else: processes, devices, precision, optimizer, checkpoints. One instance is
    made in each process; it must not depend on the rank, and it must not draw random numbers but in `build_model`,
    before which the engine seeds torch's generator alike on all processes.

    Attributes:
        smooths: whether `loss` goes by `smoothing_of`; else `label_smoothing` is refused.
        mixes: whether `batch` and `loss` go by the columns `OTHER_LABEL` and `OTHER_SHARE`, where a row has them; else
            `mixup_alpha` and `cutmix_alpha` are refused.
        has_one_shape: whether all batches of as many rows have the same shapes, as those of images: then long trainings
            on GPUs are compiled.
        label_smoothing: the parameter of the training, which the engine sets.
        attention: the same.
        names: what the model's outputs are of, where the dataset has no `labels`, such as the classes of which a row
            may have several; none where they have no names.
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
            dataset: what prepare_data has left.

        Raises:
            UserError: the dataset is not one that the recipe can be trained on.
        """

    @abstractmethod
    def build_model(self, name: str) -> nn.Module:
        """Builds the model in fp32 on the CPU, the same bits in every process.

        Args:
            name: what the user gave as `model`: a name the recipe knows, a local directory, a hub id.

        Raises:
            UserError: there is no such model, or it does not fit the data.
        """

    @abstractmethod
    def batch(self, columns: dict[str, Any], device: torch.device) -> Batch:
        """Rows of the dataset as tensors on `device`. In training it is called on a thread, for steps that are to come.

        Args:
            columns: numpy arrays of shape (rows, *feature shape) by feature; they may be kept, nobody else uses them.
            device: where the tensors go; by `on_device`, so that nobody waits for the copies.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The loss of a batch, a mean over its rows unless `loss_tokens` says otherwise, in nats; 0-d float32.

        Args:
            model: called once; it may be a wrapper around the one that `build_model` made.
            batch: made by `batch`.
        """

    def trained_with(self, settings: Mapping[str, Any]) -> None:  # noqa: B027 (most need not know)
        """Is told the parameters of the training, by name, before the model is built.

        Args:
            settings: values by the names of the parameters.

        Raises:
            UserError: they do not fit the data.
        """

    @property
    def has_reference(self) -> bool:
        """Whether the loss goes by what the model gave for a row before the first step: the column `REFERENCE`."""
        return False

    def reference(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """What is kept of each row of train and val before the first step, float32 (rows, columns).

        Args:
            model: as the training begins with it.
            batch: as `batch` has made it.
        """
        raise NotImplementedError

    @property
    def has_sums(self) -> bool:
        """Whether the loss of a row goes by all rows of its step: `SUMS` in its batch."""
        return False

    def sums(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """What is added up over the micro-batches and processes of a step before its first loss, float32 (columns,).

        It is called without a gradient, in training and in validation, with the same batches as `loss`.

        Args:
            model: as it is before the step.
            batch: as `batch` has made it.
        """
        raise NotImplementedError

    def rows_of(self, batch: Batch) -> int:
        """Rows of a batch.

        Args:
            batch: as `batch` has made it.
        """
        return len(next(iter(batch.values())))

    def smoothing_of(self, model: nn.Module) -> float:
        """The share of a target that is spread over all classes: `label_smoothing`, and 0 where a model is watched.

        Args:
            model: the one that the loss is computed of.
        """
        return self.label_smoothing if model.training else 0.0

    def loss_tokens(self, columns: Mapping[str, Any]) -> int | None:
        """How many the `loss` of these rows is a mean over, such as tokens that are not masked; None: the rows.

        Batches are split over processes and micro-batches; with this count the gradient is that of the mean over all
        loss tokens of the global batch, however they are split. A batch without any must have a loss of 0, not NaN.

        Args:
            columns: rows of the dataset, by column.
        """
        return None

    @abstractmethod
    def predict(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """What the evaluation scores, float32 on any device.

        What that is the task's `Scoring` says. For a classifier, class probabilities of shape (rows, classes). For a
        task without a scoring of its own, (rows, 3): sum of the losses of a row in nats, number of its loss tokens, and
        how many of them were predicted right (NaN where that has no meaning).

        Args:
            model: the one to score, without gradients.
            batch: as `batch` has made it.
        """

    @abstractmethod
    def export(self, model: nn.Module, directory: Path) -> None:
        """Writes the model in Hugging Face layout: config.json, model.safetensors, tokenizer or preprocessor.

        Args:
            model: the trained one, with all its weights.
            directory: where its files go.
        """

    def taking_over(self, directory: Path, model: nn.Module) -> tuple[Recipe, nn.Module]:
        """A model that another program trained, and the recipe that predicts rows of this dataset with it.

        Args:
            directory: in Hugging Face layout, where the model was loaded from.
            model: as `load_exported` of this recipe loaded it.

        Raises:
            UserError: it does not fit the data.
        """
        return self, model

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The repeated layers of a model: the units in which it is sharded and its activations are recomputed.

        By default the innermost modules that a Hugging Face model says must not be split (`_no_split_modules`), else
        the members of the `nn.ModuleList` with the most parameters, also where they are in lists of their own, as
        the layers of the stages of a PVT are.

        Args:
            model: what `build_model` has made.
        """
        named = set(getattr(model, "_no_split_modules", None) or ())
        found = [module for module in model.modules() if type(module).__name__ in named]
        if found:
            holders = {
                id(module) for module in found for inner in module.modules() if inner in found and inner is not module
            }
            return [module for module in found if id(module) not in holders]
        lists = [_layers(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
        return max((each for each in lists if len(each) > 1), key=_parameters, default=[])


def _layers(module: nn.Module) -> list[nn.Module]:
    """A module, or what is in it where it is a list, which is nothing that can be called."""
    return [layer for each in module for layer in _layers(each)] if isinstance(module, nn.ModuleList) else [module]


def _parameters(modules: list[nn.Module]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())

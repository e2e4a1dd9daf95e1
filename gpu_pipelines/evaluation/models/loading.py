"""The models that can be scored: checkpoints of the training, registered models, Hugging Face directories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import nn

from gpu_pipelines.artifacts.copied_checkpoints import with_weights
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import EVALUATION, Evaluation
from gpu_pipelines.artifacts.exported_model import weight_files
from gpu_pipelines.errors import UserError, first_line, named, some_of
from gpu_pipelines.evaluation.models.candidates import NoComparisonError
from gpu_pipelines.evaluation.models.hugging_face import is_model, open_model
from gpu_pipelines.tasks.batch_encoding import TYPE_IDS
from gpu_pipelines.tasks.building import build_model, load_recipe
from gpu_pipelines.tasks.checkpoint_state import WEIGHTS, frozen_weights_sha256, load_weights
from gpu_pipelines.tasks.nf4 import round_weights
from gpu_pipelines.tasks.recipe import Recipe
from gpu_pipelines.tasks.tasks import task_named
from gpu_pipelines.tasks.text_tokenizer import TextTokenizer, rules_of


@dataclass(frozen=True)
class ModelSource:
    """Where a model is.

    Attributes:
        kind: a `checkpoint` of the training, the `champion` of a registry, a `hugging_face` directory, or the
            `untrained` model that the training began with.
        path: its directory; not used for `untrained`.
        title: its name in messages.
        part: for a checkpoint: the weights, or their moving average.
    """

    kind: Literal["checkpoint", "champion", "hugging_face", "untrained"]
    path: Path
    title: str
    part: str = WEIGHTS


@dataclass(frozen=True)
class Loaded:
    """A model in memory: the recipe that makes its batches and predicts, and the classes of its probabilities."""

    recipe: Any
    model: nn.Module
    labels: list[str]


class Models:
    """Loads models. The model of the training is built once, and the weights of its checkpoints are swapped in place.

    Args:
        dataset: what they are scored on.
        settings: of the training; without `model` there is no model of the training.
        frozen_sha256: of the weights that are not in the checkpoints; empty if all are.
        device: where models go.
    """

    def __init__(self, dataset: Dataset, settings: Mapping[str, Any], frozen_sha256: str, device: torch.device) -> None:
        self._dataset = dataset
        self._settings = settings
        self._frozen_sha256 = frozen_sha256
        self.device = device
        self._trained: Loaded | None = None
        self._current: tuple[ModelSource, Loaded] | None = None
        self.recipe = recipe_class(settings, dataset.manifest.task).for_dataset(dataset)
        if settings:
            self.recipe.trained_with(settings)

    def load(self, source: ModelSource) -> Loaded:
        """The model of a source, on the device, in evaluation mode; the model loaded before may be gone.

        Raises:
            NoComparisonError: it is the champion's, and cannot be loaded.
            UserError: it cannot be loaded, or does not belong to this data.
        """
        if self._current is None or self._current[0] != source:
            self._current = None
            if self.device.type == "cuda":
                # What takes the current device, such as a kernel of Triton or a recipe's .cuda(), would take the first.
                torch.cuda.set_device(self.device)
            loaded = self._load(source)
            loaded.model.to(self.device).eval()
            self._current = (source, loaded)
        return self._current[1]

    def forget(self) -> None:
        """Notes that the weights in memory no longer belong to a source."""
        self._current = None

    def _load(self, source: ModelSource) -> Loaded:
        if source.kind == "champion":
            return load_champion(source, self._dataset)
        if source.kind == "hugging_face":
            return Loaded(*open_model(source.path, self._dataset))
        if source.kind == "untrained":
            return self._build()
        if self._trained is None:
            self._trained = self._build()
        with with_weights(source.path):
            load_weights(self._trained.model, source.path, source.part)
        return self._trained

    def _build(self) -> Loaded:
        # As the training did: what is frozen was perhaps never trained and is not in a checkpoint.
        torch.manual_seed(self._settings.get("seed", 0))
        model = build_model(self.recipe, self._settings, as_stored=True)
        known = self._frozen_sha256
        if known and known != frozen_weights_sha256(model, like=known):
            raise UserError(
                f"The checkpoints hold adapters for the model {self._settings['model']!r}, whose weights have "
                "changed since the training.",
                "Put the same weights back.",
            )
        if self._settings.get("quantize_base"):
            round_weights(model)
        for weight in model.parameters():
            # One by one, and on the device: no process has all of them in fp32 in main memory beside a GPU.
            there = weight.data.to(self.device)
            weight.data = there.float() if there.is_floating_point() else there
        return Loaded(self.recipe, model, self._dataset.manifest.labels)


def recipe_class(settings: Mapping[str, Any], task: str) -> type[Recipe]:
    """The recipe of a training.

    Raises:
        UserError: neither the training nor the task names a recipe, or it cannot be imported.
    """
    path = settings.get("recipe", "")
    if not path and not task_named(task).recipe:
        raise UserError(
            f"The task {task!r} of the dataset is not one of this program's, and training.json names no recipe.",
            "Train with recipe=package.module:ClassName, or give scoring_function.",
        )
    return load_recipe(path, task)


def load_champion(source: ModelSource, dataset: Dataset) -> Loaded:
    """A registered model, with the recipe that trained it.

    Raises:
        NoComparisonError: its recipe cannot be imported, cannot read the dataset, or does not load the model.
        UserError: it is a model for something else.
    """
    if not (source.path / EVALUATION).is_file():
        return _load_unevaluated(source, dataset)
    evaluation = Evaluation.load(source.path).with_names_of(dataset.manifest.labels)
    _require_same_kind(source, evaluation, dataset)
    settings = evaluation.configuration["settings"]
    if not settings:
        return Loaded(*open_model(source.path, dataset))
    with champion_errors(source):
        found: Any = recipe_class(settings, dataset.manifest.task)
        recipe = found.for_dataset(dataset)
        is_exported = hasattr(found, "for_exported") and hasattr(found, "load_exported")
        recipe = found.for_exported(source.path) if is_exported else recipe
    require_same_tokens(source, recipe, dataset)
    with champion_errors(source):
        model = recipe.load_exported(source.path) if is_exported else _built(source, recipe, settings["model"])
    return Loaded(recipe, model, evaluation.labels)


def _load_unevaluated(source: ModelSource, dataset: Dataset) -> Loaded:
    """A registered model that nobody has evaluated, where it is one in Hugging Face layout.

    Raises:
        NoComparisonError: it is none, or none for this dataset.
    """
    if not is_model(source.path):
        raise NoComparisonError(
            f"{source.title} was registered without an evaluation, and is not a model in Hugging Face layout."
        )
    with champion_errors(source):
        return Loaded(*open_model(source.path, dataset))


def _built(source: ModelSource, recipe: Recipe, name: str) -> nn.Module:
    """The model of a recipe that builds it for a dataset, with the weights of an exported one."""
    model = recipe.build_model(name)
    try:
        _load_weights(model, source.path)
    except (RuntimeError, SafetensorError, OSError) as error:
        raise UserError(
            f"it does not fit the model that its recipe {type(recipe).__name__} builds for this dataset: "
            f"{first_line(error)}",
            "Define for_exported (a class method) and load_exported in the recipe, as those of this program do, or "
            "give another model_name.",
        ) from None
    return model


def _load_weights(model: nn.Module, directory: Path) -> None:
    """Loads the weights of an exported model, from one file or several, in place.

    Raises:
        RuntimeError: a weight is in the files alone or in the model alone, or of another shape.
    """
    # A weight that is shared by several modules is in one of the files, under one of its names.
    found = [load_model(model, directory / file, strict=False) for file in weight_files(directory)]
    lost = set.intersection(*(set(missing) for missing, _ in found))
    others = {name for _, unexpected in found for name in unexpected}
    if lost or others:
        raise RuntimeError(f"its weights do not fit: {some_of(sorted(lost | others), most=5)}")


@contextmanager
def champion_errors(source: ModelSource) -> Iterator[None]:
    """Makes any error of a champion's recipe a reason why it cannot be compared; for other models nothing changes.

    Raises:
        NoComparisonError: instead of any other error.
    """
    try:
        yield
    except Exception as error:  # a user's recipe can raise anything on rows that it was not made for
        if source.kind != "champion" or isinstance(error, NoComparisonError):
            raise
        what, remedy = named(error), ""
        if isinstance(error, UserError):
            what, remedy = error.problem, error.remedy
        raise NoComparisonError(f"{source.title} cannot be scored on this dataset: {what}", remedy) from error


def _require_same_kind(source: ModelSource, evaluation: Evaluation, dataset: Dataset) -> None:
    task, labels = dataset.manifest.task, dataset.manifest.labels
    if evaluation.scoring_function:
        raise UserError(
            f"{source.title} was scored by {evaluation.scoring_function}, this model by its recipe.",
            f"Give scoring_function={evaluation.scoring_function} for both, or another model_name.",
        )
    if evaluation.task != task:
        raise UserError(
            f"{source.title} is a model for {evaluation.task}, this one is for {task}.", "Give another model_name."
        )
    data = evaluation.data or {}
    if (takes_pairs := TYPE_IDS in data.get("features", [])) != (TYPE_IDS in dataset.manifest.features):
        kinds = ("single texts", "pairs of texts")
        raise UserError(
            f"{source.title} takes {kinds[takes_pairs]}, and this dataset has {kinds[not takes_pairs]}, so they cannot "
            "be compared on the same rows.",
            "Give another model_name.",
        )
    if labels and not set(evaluation.labels) & set(labels):
        raise UserError(
            f"{source.title} knows none of the classes of this dataset: it has {some_of(evaluation.labels, most=5)}, "
            f"the dataset {some_of(labels, most=5)}.",
            "Give another model_name, or the data that this one is for.",
        )


def require_same_tokens(source: ModelSource, recipe: Any, dataset: Dataset) -> None:
    """Refuses to score a text model on tokens that it was not trained on, or on more of them than it takes.

    Raises:
        UserError: it is such a model.
    """
    tokenizer, ours = getattr(recipe, "tokenizer", None), dataset.tokenizer
    if not isinstance(tokenizer, TextTokenizer) or ours is None:
        return
    if rules_of(tokenizer.directory) != rules_of(ours):
        raise UserError(
            f"{source.title} has another tokenizer than this dataset, so they cannot be compared on the same rows.",
            f"Prepare the data with -p tokenizer={source.path}, or give another model_name.",
        )
    longest, tokens = getattr(recipe, "sequence_length", None), dataset.manifest.features.get("input_ids")
    rows = tokens.shape[0] if tokens else 0
    if longest is not None and longest < rows:
        raise UserError(
            f"{source.title} takes at most {longest:,} tokens; the rows of this dataset have {rows:,}.",
            f"Prepare the data with -p sequence_length={longest}, or give another model_name.",
        )

"""Scores the checkpoints of a training with the recipe that it was trained with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import nn

from gpu_pipelines.artifacts.checkpoint import Checkpoint, complete_checkpoints, read_configuration
from gpu_pipelines.artifacts.dataset import Dataset, Split
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.components.evaluation.bootstrap import Interval
from gpu_pipelines.components.evaluation.candidates import Candidate
from gpu_pipelines.components.evaluation.classification_metrics import ClassificationScores, predictions
from gpu_pipelines.components.evaluation.examples import examples_of
from gpu_pipelines.components.evaluation.likelihood_metrics import LikelihoodScores
from gpu_pipelines.components.evaluation.scores import Scores
from gpu_pipelines.errors import UserError
from gpu_pipelines.recipes.building import build_model, load_recipe
from gpu_pipelines.recipes.checkpoint_state import frozen_weights_sha256, load_weights
from gpu_pipelines.recipes.recipe import Recipe
from gpu_pipelines.recipes.tasks import TASKS, task_named
from gpu_pipelines.recipes.text_tokenizer import TextTokenizer
from gpu_pipelines.registry import RegisteredVersion

ROWS_PER_BATCH = 256
MISTAKES_KEPT = 24
NOT_A_CLASS = "none (not a number)"


class RecipeScorer:
    """Runs models over the rows of a dataset, in this process; see `Scorer`.

    Args:
        dataset: its `val` and `test` splits are read.
        directory: where training left its checkpoints.

    Raises:
        UserError: there is no good checkpoint, or data and checkpoints do not belong together.
    """

    def __init__(self, dataset: Dataset, directory: Path) -> None:
        configuration = read_configuration(directory)
        settings = configuration.get("settings")
        if not isinstance(settings, dict) or "model" not in settings:
            raise UserError(f"The training.json of {directory} does not name the model that was trained.")
        self.configuration = {"settings": settings, "devices": configuration.get("devices", {})}
        self._dataset = dataset
        self._labels = dataset.manifest.labels
        self._task = task_named(dataset.manifest.task)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        checkpoints = _good_checkpoints(directory, dataset)
        self.candidates = [
            Candidate(c.path, step=c.info.step, epoch=c.info.epoch, rehearsal=c.info.rehearsal) for c in checkpoints
        ]
        self._recipe = _recipe_class(settings, self._task.name).for_dataset(dataset)
        # As the training did: what is frozen was perhaps never trained and is not in a checkpoint.
        torch.manual_seed(settings.get("seed", 0))
        self._model = build_model(self._recipe, settings)
        _require_same_frozen_weights(self._model, checkpoints, settings["model"])

    def on_val(self, candidate: Candidate) -> Scores:
        load_weights(self._model, candidate.path)
        val = self._dataset.split("val")
        return self._scores(self._predict(self._recipe, self._model, val), val)

    def on_test(self, candidate: Candidate) -> tuple[Scores, list[dict[str, Any]]]:
        load_weights(self._model, candidate.path)
        test = self._dataset.split("test")
        predicted = self._predict(self._recipe, self._model, test)
        scores = self._scores(predicted, test)
        return scores, _mistakes(predicted, test, self._labels) if self._task.classifies else []

    def champion_on_test(self, champion: RegisteredVersion) -> dict[str, Interval]:
        evaluation = Evaluation.load(champion.path)
        _require_same_kind(champion, evaluation, self._task.name, self._labels)
        recipe, model = self._load_champion(champion, evaluation)
        _require_same_tokens(champion, recipe, self._recipe)
        test = self._dataset.split("test")
        predicted = self._predict(recipe, model, test)
        if self._task.classifies:
            predicted = _by_label(predicted, evaluation.labels, self._labels)
        return self._scores(predicted, test).intervals()

    def export(self, candidate: Candidate, directory: Path) -> None:
        load_weights(self._model, candidate.path)
        if self.configuration["settings"].get("lora_rank"):
            from gpu_pipelines.recipes.adapters import merge_adapters

            self._model = merge_adapters(self._model)
        self._recipe.export(self._model, directory)
        self._model.to(self._device).eval()
        if examples := examples_of(self._recipe, self._model, self._dataset, self._device):
            examples.save(directory)

    def _scores(self, predicted: np.ndarray, split: Split) -> Scores:
        if not self._task.classifies:
            return LikelihoodScores.of(predicted)
        labels = np.concatenate([columns["label"] for columns in split.columns(0, len(split))])
        return ClassificationScores.of(predicted, labels, len(self._labels))

    def _predict(self, recipe: Any, model: nn.Module, split: Split) -> np.ndarray:
        """What `recipe` predicts for all rows of a split, which this dataset's own recipe makes batches of."""
        if not len(split):
            raise UserError(f"The split {split.name} of {self._dataset.directory} has no rows.")
        model.to(self._device).eval()
        size = self._rows_per_batch()
        found = []
        with torch.inference_mode():
            for start in range(0, len(split), size):
                for columns in split.columns(start, start + size):
                    batch = self._recipe.batch({name: a.copy() for name, a in columns.items()}, self._device)
                    found.append(recipe.predict(model, batch).float().cpu().numpy())
                    self._require_shape(found[-1], len(next(iter(columns.values()))), recipe)
        return np.concatenate(found)

    def _rows_per_batch(self) -> int:
        """Of a classifier as many as ever; of anything else, whose output may be large, as many as were trained on."""
        if self._task.classifies:
            return ROWS_PER_BATCH
        settings, devices = self.configuration["settings"], self.configuration["devices"]
        of_a_process = settings.get("global_batch_size", 1) // devices.get("processes", 1)
        return max(1, min(ROWS_PER_BATCH, settings.get("micro_batch_size") or of_a_process))

    def _require_shape(self, predicted: np.ndarray, rows: int, recipe: Any) -> None:
        if self._task.classifies:
            wanted = f"class probabilities of shape ({rows}, {len(self._labels)})"
            fits = predicted.ndim == 2 and (predicted.shape[1] == len(self._labels) or recipe is not self._recipe)
        else:
            wanted = f"({rows}, 3): sum of losses, number of terms, number right"
            fits = predicted.ndim == 2 and predicted.shape[1] == 3
        if not fits or len(predicted) != rows:
            raise UserError(
                f"predict of the recipe {type(recipe).__name__} gave the shape {predicted.shape}; the task "
                f"{self._task.name} is scored by {wanted}."
            )

    def _load_champion(self, champion: RegisteredVersion, evaluation: Evaluation) -> tuple[Any, nn.Module]:
        settings = evaluation.configuration["settings"]
        recipe_class: Any = _recipe_class(settings, self._task.name)
        if hasattr(recipe_class, "for_exported") and hasattr(recipe_class, "load_exported"):
            recipe = recipe_class.for_exported(champion.path)
            return recipe, recipe.load_exported(champion.path)
        recipe = recipe_class.for_dataset(self._dataset)
        model = recipe.build_model(settings["model"])
        try:
            load_model(model, champion.path / "model.safetensors")
        except (RuntimeError, SafetensorError, OSError) as error:
            raise UserError(
                f"The champion of {champion.name!r}, version {champion.number}, does not fit the model that its recipe "
                f"{recipe_class.__name__} builds for this dataset: {str(error).splitlines()[0]}",
                "Define for_exported (a class method) and load_exported in the recipe, as that of image_classification "
                "does, or give another model_name.",
            ) from None
        return recipe, model


def _recipe_class(settings: dict[str, Any], task: str) -> type[Recipe]:
    path = settings.get("recipe", "")
    if not path and task not in TASKS:
        raise UserError(
            f"The task {task!r} of the dataset is none of this program's, and training.json names no recipe.",
            "Train with recipe=package.module:ClassName, or give scoring_function.",
        )
    return load_recipe(path, task)


def _good_checkpoints(directory: Path, dataset: Dataset) -> list[Checkpoint]:
    good = []
    for checkpoint in complete_checkpoints(directory):
        if checkpoint.info.dataset_fingerprint != dataset.manifest.fingerprint:
            raise UserError(
                f"The checkpoint {checkpoint.name} was trained on another dataset, so these val and test rows may be "
                "among its training rows.",
                "Give the dataset it was trained on.",
            )
        if damaged := checkpoint.damaged_file():
            print(f"warning: passing over {checkpoint.name}: {damaged} is damaged", flush=True)
        else:
            good.append(checkpoint)
    if not good:
        raise UserError(f"{directory} has no complete checkpoint.", "Train for at least one checkpoint interval.")
    return good


def _require_same_frozen_weights(model: nn.Module, checkpoints: list[Checkpoint], name: str) -> None:
    wanted = {checkpoint.info.frozen_weights_sha256 for checkpoint in checkpoints} - {""}
    if wanted and wanted != {frozen_weights_sha256(model)}:
        raise UserError(
            f"The checkpoints hold adapters for the model {name!r}, whose weights are not what they were in training.",
            "Put the same weights in that place again.",
        )


def _require_same_kind(champion: RegisteredVersion, evaluation: Evaluation, task: str, labels: list[str]) -> None:
    if evaluation.scoring_function:
        raise UserError(
            f"The champion of {champion.name!r} was scored by {evaluation.scoring_function}, this model by its recipe.",
            f"Give scoring_function={evaluation.scoring_function} for both, or another model_name.",
        )
    if evaluation.task != task:
        raise UserError(
            f"The champion of {champion.name!r} is a model for {evaluation.task}, this one is for {task}.",
            "Give another model_name.",
        )
    if labels and not set(evaluation.labels) & set(labels):
        raise UserError(
            f"The champion of {champion.name!r} knows none of the classes of this dataset.",
            "Give another model_name.",
        )


def _require_same_tokens(champion: RegisteredVersion, recipe: Any, ours: Any) -> None:
    """Refuses to score a text model on tokens that it was not trained on, or on more of them than it takes."""
    tokenizers = [getattr(each, "tokenizer", None) for each in (recipe, ours)]
    found = {tokenizer.fingerprint() for tokenizer in tokenizers if isinstance(tokenizer, TextTokenizer)}
    if len(found) > 1:
        raise UserError(
            f"The champion of {champion.name!r}, version {champion.number}, has another tokenizer than this dataset, "
            "so they cannot be compared on the same rows.",
            f"Prepare the data with -p tokenizer={champion.path}, or give another model_name.",
        )
    longest = getattr(recipe, "sequence_length", None)
    if longest is not None and longest < getattr(ours, "sequence_length", 0):
        raise UserError(
            f"The champion of {champion.name!r}, version {champion.number}, takes at most {longest:,} tokens; the rows "
            f"of this dataset have {ours.sequence_length:,}.",
            f"Prepare the data with -p sequence_length={longest}, or give another model_name.",
        )


def _by_label(probabilities: np.ndarray, has: list[str], wanted: list[str]) -> np.ndarray:
    """Reorders the columns to the `wanted` labels; those of other labels are added up in one more column, the last."""
    place = {label: index for index, label in enumerate(wanted)}
    matched = np.zeros((len(probabilities), len(wanted) + 1), dtype=probabilities.dtype)
    for column, label in enumerate(has):
        matched[:, place.get(label, len(wanted))] += probabilities[:, column]
    return matched


def _mistakes(probabilities: np.ndarray, test: Split, names: list[str]) -> list[dict[str, Any]]:
    """The wrong predictions that the model was surest of."""
    labels = np.concatenate([columns["label"] for columns in test.columns(0, len(test))])
    finite, predicted = predictions(probabilities, len(names))
    sureness = np.where(finite, probabilities.max(axis=1), 0.0)
    wrong = np.flatnonzero(predicted != labels)
    surest = wrong[np.argsort(-sureness[wrong], kind="stable")][:MISTAKES_KEPT]
    rows = [int(row) for row in surest]
    return [
        {
            "row": row,
            "source": source,
            "label": names[labels[row]],
            "predicted": [*names, NOT_A_CLASS][predicted[row]],
            "probability": round(float(sureness[row]), 4),
        }
        for row, source in zip(rows, test.sources(rows), strict=True)
    ]

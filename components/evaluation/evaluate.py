"""Evaluates every checkpoint on `val`, the best one on `test`, beside the registry's champion on the same rows."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.artifacts.checkpoint import Checkpoint, complete_checkpoints, read_configuration
from gpu_pipelines.artifacts.dataset import Dataset, Split
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.artifacts.exported_model import write_model_card
from gpu_pipelines.components.evaluation.classification_metrics import ClassificationScores, predictions
from gpu_pipelines.components.evaluation.gates import GateResult, shown_beside
from gpu_pipelines.components.evaluation.settings import EvaluationSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.recipes.checkpoint_state import load_weights
from gpu_pipelines.recipes.tasks import TASKS, Metric
from gpu_pipelines.registry import RegisteredVersion, model_name_for, open_registry

ROWS_PER_BATCH = 256
MISTAKES_KEPT = 24
NOT_A_CLASS = "none (not a number)"
AT_LEAST_CHAMPION = "at least as good as the champion"


def evaluate_checkpoints(
    settings: EvaluationSettings, dataset_directory: Path, checkpoint_directory: Path, export_directory: Path
) -> Evaluation:
    """Scores all checkpoints, exports the best one with its evaluation, and says whether it passed.

    Args:
        settings: gates, metric to choose by, registry and name of the champion.
        dataset_directory: the dataset artifact; `val` ranks, `test` decides.
        checkpoint_directory: where training left its checkpoints.
        export_directory: where the best one goes, in Hugging Face layout.

    Raises:
        UserError: there is no good checkpoint, or data, checkpoints and champion do not belong together.
    """
    dataset = Dataset(dataset_directory)
    task = dataset.manifest.task
    if problems := settings.problems(task):
        raise UserError.of_all(problems)
    configuration = read_configuration(checkpoint_directory)
    checkpoints = _good_checkpoints(checkpoint_directory, dataset)
    evaluator = Evaluator(TASKS[task].load_recipe().for_dataset(dataset), dataset)
    model = evaluator.recipe.build_model(configuration["settings"]["model"])

    scored = evaluator.score_all(model, checkpoints)
    best = _choose(scored, checkpoints, settings.select_by, TASKS[task].metrics)
    load_weights(model, best.path)
    probabilities, labels = evaluator.probabilities(model, evaluator.test)
    scores = ClassificationScores.of(probabilities, labels, len(dataset.manifest.labels))
    name = settings.model_name or model_name_for(dataset.manifest.source)
    champion = _score_champion(open_registry(settings.registry).champion(name), evaluator, task)
    gates = _check_gates(settings, task, scores, champion)
    evaluation = Evaluation(
        model_name=name,
        task=task,
        labels=dataset.manifest.labels,
        dataset_fingerprint=dataset.manifest.fingerprint,
        configuration={key: configuration[key] for key in ("settings", "devices")},
        select_by=settings.select_by,
        checkpoints=scored,
        best=best.name,
        test=_summary(scores),
        champion=champion,
        gates=[asdict(gate) for gate in gates],
        passed=all(gate.passed for gate in gates),
        mistakes=_mistakes(probabilities, labels, evaluator.test, dataset.manifest.labels),
    )
    export_directory.mkdir(parents=True, exist_ok=True)
    evaluator.recipe.export(model, export_directory)
    evaluation.save(export_directory)
    write_model_card(export_directory, evaluation, dataset.manifest.source)
    return evaluation


class Evaluator:
    """Runs models over the rows of one dataset, in this process.

    Args:
        recipe: turns rows into batches and batches into probabilities.
        dataset: its `val` and `test` splits are read.
    """

    def __init__(self, recipe: Any, dataset: Dataset) -> None:
        self.recipe = recipe
        self.labels = dataset.manifest.labels
        self.val = dataset.split("val")
        self.test = dataset.split("test")
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def score_all(self, model: nn.Module, checkpoints: list[Checkpoint]) -> list[dict[str, Any]]:
        """Metrics of each checkpoint on `val`; the model is built once and its weights are swapped."""
        scored = []
        for number, checkpoint in enumerate(checkpoints, start=1):
            started = time.monotonic()
            load_weights(model, checkpoint.path)
            probabilities, labels = self.probabilities(model, self.val)
            metrics = ClassificationScores.of(probabilities, labels, len(self.labels)).metrics()
            info = checkpoint.info
            scored.append({"name": checkpoint.name, "step": info.step, "epoch": info.epoch, "val": metrics})
            shown = "  ".join(f"{name} {metrics[name]:.4f}" for name in ("accuracy", "log_loss"))
            took = time.monotonic() - started
            print(f"checkpoint {number}/{len(checkpoints)}  {checkpoint.name}  {shown}  {took:.1f} s", flush=True)
        return scored

    def probabilities(self, model: nn.Module, split: Split, recipe: Any | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Class probabilities (rows, classes) and labels (rows,) of a split; `recipe` if not the dataset's own."""
        predictor = recipe or self.recipe
        model.to(self._device).eval()
        found, labels = [], []
        with torch.inference_mode():
            for start in range(0, len(split), ROWS_PER_BATCH):
                for columns in split.columns(start, start + ROWS_PER_BATCH):
                    batch = self.recipe.batch({name: a.copy() for name, a in columns.items()}, self._device)
                    found.append(predictor.predict(model, batch).cpu().numpy())
                    labels.append(columns["label"])
        return np.concatenate(found), np.concatenate(labels)


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


def _choose(
    scored: list[dict[str, Any]], checkpoints: list[Checkpoint], metric: str, known: dict[str, Metric]
) -> Checkpoint:
    """The best by `metric` on val; among equals the one of lower log loss, then the earlier one."""

    def rank(number: int) -> tuple[float, float, int]:
        values = scored[number]["val"]
        return (
            -values[metric] if known[metric].more_is_better else values[metric],
            values["log_loss"],
            scored[number]["step"],
        )

    return checkpoints[min(range(len(scored)), key=rank)]


def _score_champion(champion: RegisteredVersion | None, evaluator: Evaluator, task: str) -> dict[str, Any] | None:
    if champion is None:
        return None
    trained_for = Evaluation.load(champion.path).task
    if trained_for != task:
        raise UserError(
            f"The champion of {champion.name!r} is a model for {trained_for}, this one is for {task}.",
            "Give another model_name.",
        )
    recipe = TASKS[task].load_recipe().for_exported(champion.path)
    if not set(recipe.labels) & set(evaluator.labels):
        raise UserError(
            f"The champion of {champion.name!r} knows none of the classes of this dataset.",
            "Give another model_name.",
        )
    model = recipe.load_exported(champion.path)
    probabilities, labels = evaluator.probabilities(model, evaluator.test, recipe)
    matched = _by_label(probabilities, recipe.labels, evaluator.labels)
    scores = ClassificationScores.of(matched, labels, len(evaluator.labels))
    return {"version": champion.number, "metrics": scores.intervals()}


def _by_label(probabilities: np.ndarray, has: list[str], wanted: list[str]) -> np.ndarray:
    """Reorders the columns to the `wanted` labels; those of other labels are added up in one more column, the last."""
    place = {label: index for index, label in enumerate(wanted)}
    matched = np.zeros((len(probabilities), len(wanted) + 1), dtype=probabilities.dtype)
    for column, label in enumerate(has):
        matched[:, place.get(label, len(wanted))] += probabilities[:, column]
    return matched


def _check_gates(
    settings: EvaluationSettings, task: str, scores: ClassificationScores, champion: dict[str, Any] | None
) -> list[GateResult]:
    metrics = scores.metrics()
    more_is_better = TASKS[task].metrics[settings.select_by].more_is_better
    comparison = _champion_gate(metrics[settings.select_by], scores.rows, champion, settings.select_by, more_is_better)
    return [*(gate.check(metrics) for gate in settings.parsed_gates(task)), comparison]


def _champion_gate(
    value: float, rows: int, champion: dict[str, Any] | None, metric: str, more_is_better: bool
) -> GateResult:
    if champion is None:
        return GateResult(AT_LEAST_CHAMPION, value, None, True, "there is no champion yet")
    other = champion["metrics"][metric]["value"]
    passed = value >= other if more_is_better else value <= other
    why = (
        f"{metric} is {shown_beside(value, other)}, version {champion['version']} has {shown_beside(other, value)} "
        f"on the same {rows:,} test rows"
    )
    return GateResult(AT_LEAST_CHAMPION, value, other, passed, why)


def _summary(scores: ClassificationScores) -> dict[str, Any]:
    return {
        "rows": scores.rows,
        "metrics": scores.intervals(),
        "per_class": scores.per_class(),
        "confusion": scores.confusion[:, :-1].tolist(),
    }


def _mistakes(probabilities: np.ndarray, labels: np.ndarray, split: Split, names: list[str]) -> list[dict[str, Any]]:
    """The wrong predictions that the model was surest of."""
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
        for row, source in zip(rows, split.sources(rows), strict=True)
    ]

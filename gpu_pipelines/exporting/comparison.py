"""Compares an exported model with the original: their metrics on the same rows, and the difference of their logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from gpu_pipelines.accelerators.memory_estimate import LOGITS_AT_ONCE
from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.models.loading import Loaded
from gpu_pipelines.evaluation.scorers.runner import Runner
from gpu_pipelines.evaluation.settings import Ranking
from gpu_pipelines.tasks.tasks import task_named

#: Most rows whose logits are compared.
ROWS_COMPARED = 32
MOST_ROWS_AT_ONCE = 8
#: The tolerance of an fp32 export's logits, as a share of the largest of them, or of 1 if they are smaller.
SAME_LOGITS = 1e-3
#: For a metric below this, the margin is a share of this.
_SMALLEST = 1e-3


@dataclass(frozen=True)
class Agreement:
    """How far the logits of two models differ.

    Attributes:
        off: the largest difference.
        largest: the largest logit by absolute value.
        rows: the rows whose logits were compared.
    """

    off: float
    largest: float
    rows: int

    @property
    def share(self) -> float:
        """The difference as a share of the largest logit, or of 1 if that is smaller."""
        return self.off / max(1.0, self.largest)


def is_language_model(dataset: Dataset) -> bool:
    """Whether the models of a dataset's task write text."""
    return task_named(dataset.manifest.task).pipeline_tag == "text-generation"


def rows_at_once(dataset: Dataset) -> int:
    """Rows of a batch: for a language model with a large vocabulary, so few that their logits fit into memory."""
    if not is_language_model(dataset):
        return MOST_ROWS_AT_ONCE
    from gpu_pipelines.tasks.text_tokenizer import TextTokenizer

    words = TextTokenizer.read(dataset.directory / str(dataset.manifest.tokenizer)).vocabulary_size
    completions = 1 if "input_ids" in dataset.manifest.features else 2
    tokens = completions * int(dataset.manifest.preprocessing["sequence_length"])
    return max(1, min(MOST_ROWS_AT_ONCE, LOGITS_AT_ONCE // (words * tokens)))


def metrics_of(runner: Runner, loaded: Loaded, rows: int) -> dict[str, float]:
    """The metrics of a model on the test rows."""
    return runner.scoring.scores(runner.predict_with(loaded, "test", 0, rows), "test").metrics()


def agreement(dataset: Dataset, one: Loaded, other: nn.Module) -> Agreement:
    """Compares the logits of two models on the first test rows.

    Raises:
        UserError: the exported model has logits that are not numbers.
    """
    test, size = dataset.split("test"), rows_at_once(dataset)
    rows, off, largest = min(len(test), ROWS_COMPARED), 0.0, 0.0
    for first in range(0, rows, size):
        batch = one.recipe.batch(test.take(np.arange(first, min(rows, first + size))), torch.device("cpu"))
        wanted, found = (_logits(one.recipe, model, batch) for model in (one.model, other))
        off = max(off, float((found - wanted).abs().max()))
        largest = max(largest, float(wanted.abs().max()))
    if math.isnan(off) or math.isinf(off):
        raise UserError("The exported model gives logits that are not numbers.", "Give --dtype f32.")
    return Agreement(off, largest, rows)


def lost(before: dict[str, float], after: dict[str, float], ranking: Ranking) -> float:
    """The share of the metric that an exported model has lost; negative for a gain."""
    worse = before[ranking.metric] - after[ranking.metric]
    return (worse if ranking.more_is_better else -worse) / max(abs(before[ranking.metric]), _SMALLEST)


def _logits(recipe: Any, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The logits of a model while its recipe predicts a batch."""
    kept: list[torch.Tensor] = []

    def look(module: nn.Module, given: Any, found: Any) -> None:
        kept.append((found if isinstance(found, torch.Tensor) else found.logits).float())

    handle = model.register_forward_hook(look)
    with torch.inference_mode():
        recipe.predict(model, batch)
    handle.remove()
    return kept[0]

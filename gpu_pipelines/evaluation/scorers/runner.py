"""Runs models over rows, in one process on one device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_pipelines.artifacts.dataset import Dataset, Split
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.generation.port import Pair, TextTask, Written
from gpu_pipelines.evaluation.generation.rows import sampled, units_of
from gpu_pipelines.evaluation.models.loading import Loaded, Models, ModelSource, champion_errors
from gpu_pipelines.tasks.tasks import task_named

WARM_UP_CALLS = 5
LATENCY_CALLS = 100
#: Seconds after which no more calls are timed.
LATENCY_SECONDS = 10.0


@dataclass(frozen=True)
class RunnerSettings:
    """What a process needs to know to run models.

    Attributes:
        dataset_directory: what they are scored on.
        training: settings of the training; empty if there was none.
        frozen_sha256: of the weights that are not in the checkpoints; empty if all are.
        rows_per_batch: rows at once.
        generate_rows: most prompts of a split to write text for; 0 for all.
        max_new_tokens: most tokens to write for each.
    """

    dataset_directory: Path
    training: Mapping[str, Any]
    frozen_sha256: str
    rows_per_batch: int
    generate_rows: int = 0
    max_new_tokens: int = 0


class Runner:
    """Predicts rows with models; besides the model of the training, one at a time is in memory.

    Args:
        settings: what to run.
        device: PyTorch's name of the device.

    Attributes:
        dataset: what they are scored on.
        scoring: what the predictions mean.
        models: loads models.

    Raises:
        UserError: there is no recipe for the data.
    """

    def __init__(self, settings: RunnerSettings, device: str) -> None:
        self._settings = settings
        self.dataset = Dataset(settings.dataset_directory)
        self._device = torch.device(device)
        self.scoring = task_named(self.dataset.manifest.task).load_scoring(self.dataset)
        self._splits: dict[str, Split] = {}
        self._pairs: dict[str, tuple[list[Pair], list[np.ndarray]]] = {}
        self.models = Models(self.dataset, settings.training, settings.frozen_sha256, self._device)

    def predict(self, source: ModelSource, split: str, start: int, stop: int) -> np.ndarray:
        """The predictions of a source's model for rows `start` to `stop` of a split; for a classifier, by our labels.

        Raises:
            NoComparisonError: it is the champion, and its recipe cannot predict them.
            UserError: the model cannot be loaded, or its predictions are not what the task is scored by.
        """
        loaded = self.models.load(source)
        with champion_errors(source):
            return self.predict_with(loaded, split, start, stop)

    def predict_with(self, loaded: Loaded, split: str, start: int, stop: int) -> np.ndarray:
        """The same with a model that is in memory.

        Raises:
            UserError: its predictions are not what the task is scored by.
        """
        found = []
        size = self._settings.rows_per_batch
        with torch.inference_mode():
            for first in range(start, stop, size):
                for columns in self._split(split).columns(first, min(stop, first + size)):
                    found.append(self._predict_batch(loaded, {name: a.copy() for name, a in columns.items()}))
        return np.concatenate(found)

    def write(self, source: ModelSource, split: str, start: int, stop: int) -> np.ndarray:
        """The text of a source's model for units `start` to `stop` of the prompts of a split, as `Written`.

        Raises:
            NoComparisonError: it is the champion, and cannot write.
            UserError: the model cannot be loaded, or cannot write.
        """
        loaded = self.models.load(source)
        pairs, units = self._prompts(split)
        written: list[Written] = []
        with torch.inference_mode(), champion_errors(source):
            for unit in units[start:stop]:
                prompts = [pairs[number].prompt for number in unit]
                written += self._text_task.write(loaded, prompts, self._settings.max_new_tokens)
        return np.array(written, dtype=object)

    def latency_ms(self, source: ModelSource, split: str) -> np.ndarray:
        """Milliseconds of calls with one row each, from a row in host memory to its prediction there, after warm-up."""
        loaded = self.models.load(source)
        rows, took = self._split(split), []
        began = time.monotonic()
        with torch.inference_mode():
            for call in range(WARM_UP_CALLS + LATENCY_CALLS):
                row = rows.take(np.array([call % len(rows)]))
                started = time.perf_counter()
                loaded.recipe.predict(loaded.model, loaded.recipe.batch(row, self._device)).cpu()
                if call >= WARM_UP_CALLS:
                    took.append(1000 * (time.perf_counter() - started))
                if took and time.monotonic() - began > LATENCY_SECONDS:
                    break
        return np.array(took)

    @property
    def device_name(self) -> str:
        """The device, for people."""
        return torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else "the CPU"

    @cached_property
    def _text_task(self) -> TextTask:
        return task_named(self.dataset.manifest.task).load_text_task(self.dataset)

    def _prompts(self, split: str) -> tuple[list[Pair], list[np.ndarray]]:
        if split not in self._pairs:
            pairs = sampled(self._text_task.pairs(split), self._settings.generate_rows)
            self._pairs[split] = pairs, units_of(pairs)
        return self._pairs[split]

    def _split(self, name: str) -> Split:
        if name not in self._splits:
            self._splits[name] = self.dataset.split(name)
        return self._splits[name]

    def _predict_batch(self, loaded: Loaded, columns: dict[str, np.ndarray]) -> np.ndarray:
        columns = self.scoring.prepared(columns)
        rows = len(next(iter(columns.values())))
        if not rows:
            return np.empty((0, self.scoring.width(self.dataset.manifest.labels) or 0), dtype=np.float32)
        parts = self.scoring.groups(columns, rows)
        made: list[np.ndarray] = []
        for chosen in parts:
            some = columns if len(chosen) == rows else {name: values[chosen] for name, values in columns.items()}
            batch = loaded.recipe.batch(some, self._device)
            predicted = loaded.recipe.predict(loaded.model, batch).float().cpu().numpy()
            self._require_shape(predicted, len(chosen), loaded)
            made.append(self.scoring.aligned(predicted, loaded.labels, loaded.recipe))
        if len(parts) == 1:
            return made[0]
        return np.concatenate(made)[np.argsort(np.concatenate(parts))]

    def _require_shape(self, predicted: np.ndarray, rows: int, loaded: Loaded) -> None:
        width = self.scoring.width(loaded.labels)
        if predicted.ndim != 2 or predicted.shape != (rows, predicted.shape[1] if width is None else width):
            raise UserError(
                f"predict of the recipe {type(loaded.recipe).__name__} gave the shape {predicted.shape}; the task "
                f"{self.dataset.manifest.task} is scored by {self.scoring.shape(rows, loaded.labels)}."
            )

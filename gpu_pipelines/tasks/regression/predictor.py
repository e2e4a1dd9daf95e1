"""Serves regression: the numbers for an image, a text, or the values of the other columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_pipelines.data.sources.row_streams import Problem
from gpu_pipelines.errors import some_of
from gpu_pipelines.serving.predictor import NUMBERS, Inputs, Predictor
from gpu_pipelines.serving.preparation import Pending
from gpu_pipelines.serving.request_body import WrongRequest, require_keys
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.tasks.image_classification.predictor import ImageClassifier
from gpu_pipelines.tasks.regression.prepare import number_in
from gpu_pipelines.tasks.regression.recipe import Regression
from gpu_pipelines.tasks.regression.scoring import as_answer
from gpu_pipelines.tasks.regression.task import INPUT, TARGET
from gpu_pipelines.tasks.text_classification.predictor import TextClassifier

#: What reads what a model of numbers learns from, by the kind of that.
_READERS: dict[str, Any] = {"image": ImageClassifier, "text": TextClassifier}
_NUMBERS = {"type": "object", "additionalProperties": {"type": "number"}}
_ENDS = {"type": "object", "additionalProperties": {"type": ["number", "null"]}}
#: Targets that are named at most.
_MOST_NAMED = 8


class Regressor(Predictor):
    """A model of numbers; see `Predictor`. Images and texts are read as classifiers read them."""

    answer = {  # noqa: RUF012 (read only)
        "type": "object",
        "properties": {"values": _NUMBERS, "low": _ENDS, "high": _ENDS},
        "required": ["values", "low", "high"],
    }

    def __init__(self, directory: Path, settings: ServerSettings, device: torch.device) -> None:
        self.device = device
        self._recipe = Regression.for_exported(directory)
        self._targets = tuple(self._recipe.form.targets)
        self._reader: Any = None
        if kind := _READERS.get(self._recipe.form.kind):
            self._reader = kind(directory, settings, device)
            self._model = self._reader.network
            self.field, self.pair, self.example = self._reader.field, self._reader.pair, self._reader.example
            return
        self._model = self._recipe.load_exported(directory).to(device).eval()
        self.field = "values"
        names = self._recipe.form.inputs
        self.value = {"type": "object", "properties": {name: {"type": "number"} for name in names}, "required": names}
        self.example = {"values": dict(zip(names, self._recipe.form.inputs_mean, strict=True))}

    @classmethod
    def inputs_of(cls, directory: Path) -> Inputs:
        form = Regression.for_exported(directory).form
        if form.kind in _READERS:
            return _READERS[form.kind].inputs_of(directory)
        return Inputs(NUMBERS, "values", tuple(form.inputs))

    def rows_of(self, values: Sequence[Any], parameters: Any) -> list[Any]:
        return self._reader.rows_of(values, 0) if self._reader is not None else super().rows_of(values, parameters)

    def read(self, instance: Any, parameters: Any) -> Pending:
        if self._reader is not None:
            return self._reader.read(instance, 0)
        names, form = self._recipe.form.inputs, f"Send {json.dumps(self.example)[:300]}."
        require_keys(instance if isinstance(instance, dict) else {}, ("values",), "An instance", f" {form}")
        values = instance.get("values") if isinstance(instance, dict) else None
        if isinstance(values, str):  # as the Open Inference Protocol sends it
            try:
                values = json.loads(values)
            except (ValueError, RecursionError) as error:
                raise WrongRequest(f"values is a text that is not JSON: {error}. {form}") from None
        if not isinstance(values, Mapping):
            raise WrongRequest(f"An instance has no values, an object of numbers by column. {form}")
        require_keys(values, names, "values", f" {form}")
        found = [number_in(values, name) for name in names]
        if problem := next((each for each in found if isinstance(each, Problem)), None):
            raise WrongRequest(f"values: {problem.detail}. {form}")
        return Pending(len(names), lambda: np.array(found, dtype=np.float32))

    def predict(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        columns = self.columns(rows)
        columns[TARGET] = np.zeros((len(rows), len(self._targets)), np.float32)
        with torch.inference_mode():
            found = self._recipe.predict(self._model, self._recipe.batch(columns, self.device)).cpu().numpy()
        return [as_answer(row, self._targets) for row in found]

    def answers(self, rows: Sequence[Any]) -> list[Any]:
        return [_or_why_not(each) for each in self.predict(rows)]

    def columns(self, rows: Sequence[Any]) -> dict[str, np.ndarray]:
        if self._reader is not None:
            found: dict[str, np.ndarray] = self._reader.columns(rows)
            return found
        numbers = np.stack(rows)
        return {f"{INPUT}{name}": numbers[:, place] for place, name in enumerate(self._recipe.form.inputs)}

    def rows_of_dataset(self, columns: Mapping[str, np.ndarray]) -> list[Any]:
        if self._reader is not None:
            found: list[Any] = self._reader.rows_of_dataset(columns)
            return found
        numbers = [columns[f"{INPUT}{name}"] for name in self._recipe.form.inputs]
        return list(np.stack(numbers, axis=1).astype(np.float32))


def _or_why_not(answer: dict[str, Any]) -> dict[str, Any] | WrongRequest:
    """An answer, unless the model has no number for a target."""
    missing = [name for name, number in answer["values"].items() if number is None]
    if not missing:
        return answer
    named = some_of(missing, _MOST_NAMED)
    return WrongRequest(f"the prediction of {named} is no finite number; the row may be too far from what was learned")

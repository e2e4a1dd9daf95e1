"""The port of predictors, between the server and a task's model."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gpu_pipelines.serving.batching import Advance
from gpu_pipelines.serving.preparation import Pending
from gpu_pipelines.serving.request_body import WrongRequest, require_keys
from gpu_pipelines.serving.settings import ServerSettings

#: A tensor of the Open Inference Protocol: its name, its type, and its shape, -1 for sizes that vary.
Output = tuple[str, str, list[int]]


#: What a model predicts from: an image, a text, or the numbers in some columns of a table.
IMAGES, TEXTS, NUMBERS = "images", "texts", "numbers"


class Inputs(NamedTuple):
    """What a model predicts from, in the rows of a source.

    Attributes:
        kind: `IMAGES`, `TEXTS` or `NUMBERS`.
        field: the field of an instance; a table may have a column of this name.
        columns: for numbers, the columns of a table that hold them.
        words: columns of a table that may hold a text as words, for a model that takes lists of words as they are; for
            other models a list is joined with blanks.
        chats: columns of a table that may hold messages, for a model that answers them; `tools` may stand beside them.
        pair: the field of the second text of an instance, for a model for pairs of texts; empty for others.
    """

    kind: str
    field: str
    columns: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    chats: tuple[str, ...] = ()
    pair: str = ""


class Predictor(ABC):
    """A loaded model.

    Args:
        directory: the exported model, in Hugging Face layout.
        settings: limits of what it takes.
        device: where the model goes.

    Attributes:
        task: its task, for people; set by whoever loads it.
        device: where the model is.
        field: the one field of an instance, or the first of two texts.
        pair: the field of the second text of an instance, for a model for pairs of texts; empty for others.
        value: the JSON Schema of the field's value; in the Open Inference Protocol it is a text.
        instance: the JSON Schema of an instance; None for one with these fields.
        example: an instance that it can predict.
        labels: the classes; empty if there are none.
        parameters: the JSON Schema of each parameter of a request.
        answer: the JSON Schema of a prediction.
        outputs: the tensors of predictions in the Open Inference Protocol.
        advance: continues what `predict` left unfinished; None for a model that finishes everything at once.
        writes_at_once: rows that `advance` takes at once.
    """

    task: str = ""
    device: torch.device
    field: str
    pair: str = ""
    value: Mapping[str, Any] = {"type": "string"}
    instance: Mapping[str, Any] | None = None
    example: Mapping[str, Any]
    labels: Sequence[str] = ()
    parameters: Mapping[str, Any] = {}
    answer: Mapping[str, Any] = {"type": "object"}
    outputs: Sequence[Output] = (("prediction", "BYTES", [-1]),)
    advance: Advance | None = None
    writes_at_once = 1

    @abstractmethod
    def __init__(self, directory: Path, settings: ServerSettings, device: torch.device) -> None: ...

    @classmethod
    def inputs_of(cls, directory: Path) -> Inputs:
        """What an exported model predicts from, without loading it.

        Args:
            directory: the model, in Hugging Face layout.
        """
        return Inputs(IMAGES if cls.field == "b64" else TEXTS, cls.field)

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields of an instance."""
        return (self.field, self.pair) if self.pair else (self.field,)

    def checked(self, parameters: Mapping[str, Any]) -> Any:
        """Checks the parameters of a request.

        Args:
            parameters: as the client sent them, by name.

        Returns:
            What `read` takes as its `parameters`.

        Raises:
            WrongRequest: one is unknown or wrong.
        """
        require_keys(parameters, tuple(self.parameters), "parameters")
        return None

    @abstractmethod
    def read(self, instance: Any, parameters: Any) -> Pending:
        """Reads an instance without decoding it; called from several threads.

        Args:
            instance: an entry of `instances`, as JSON.
            parameters: what `checked` returned.

        Raises:
            WrongRequest: the instance is wrong.
        """

    def rows_of(self, values: Sequence[Any], parameters: Any) -> list[Any]:
        """Rows of many values at once, for callers without requests; called from several threads.

        Args:
            values: bytes of images, texts, or mappings of numbers by column.
            parameters: what `checked` returned.

        Returns:
            For each value its row, or the `WrongRequest` that says why there is none.
        """
        return [row_or_why_not(partial(self._row_of, value, parameters)) for value in values]

    def rows_of_documents(self, values: Sequence[Any], parameters: Any) -> list[Any]:
        """Rows of values in the way in which training makes rows of them, for a check of drift.

        Args:
            values: as for `rows_of`.
            parameters: what `checked` returned.

        Returns:
            As `rows_of`, but without values of kinds that a profile does not have.
        """
        return self.rows_of(values, parameters)

    def _row_of(self, value: Any, parameters: Any) -> Any:
        return self.pending_of(value, parameters).row()

    def pending_of(self, value: Any, parameters: Any) -> Pending:
        """Reads a value outside of a request, as `read` reads an instance.

        Args:
            value: the bytes of an image, a text, or numbers by column.
            parameters: what `checked` returned.

        Raises:
            WrongRequest: the value is wrong.
        """
        return self.read({self.field: value}, parameters)

    @abstractmethod
    def predict(self, rows: Sequence[Any]) -> list[Any]:
        """Predicts a batch of rows; called from one thread.

        Args:
            rows: what `Pending.row` returned, one for each instance.

        Returns:
            For each row a prediction, a JSON value, or an `Unfinished`.
        """

    def answers(self, rows: Sequence[Any]) -> list[Any]:
        """The answers to a client for a batch of rows; called from one thread.

        Args:
            rows: as for `predict`.

        Returns:
            What `predict` returns, or the `WrongRequest` that says why the model has no answer for the row.
        """
        return self.predict(rows)

    def columns(self, rows: Sequence[Any]) -> dict[str, np.ndarray]:
        """Rows in the form of a dataset, so that drift can be measured between requests and training data.

        For a task that does not override this, drift is measured only on predictions.

        Args:
            rows: what `Pending.row` returned.

        Returns:
            Arrays of shape (rows, *feature shape) by feature.
        """
        return {}

    def rows_of_dataset(self, columns: Mapping[str, np.ndarray]) -> list[Any]:
        """Rows of a dataset of the task in the form for `predict`; empty if that is not possible.

        Args:
            columns: arrays of shape (rows, *feature shape) by feature.
        """
        return []

    @property
    def network(self) -> Any:
        """The PyTorch module of the model; None if there is none to look into."""
        return getattr(self, "_model", None)

    def tensors(self, predictions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Predictions as tensors of the Open Inference Protocol; each is one text of JSON unless a task overrides this.

        Args:
            predictions: what `predict` returned.
        """
        return [tensor("prediction", "BYTES", [len(predictions)], [json.dumps(each) for each in predictions])]


def row_or_why_not(make: Callable[[], Any]) -> Any:
    """What a function returns, or the `WrongRequest` that it raises."""
    try:
        return make()
    except WrongRequest as wrong:
        return wrong


def tensor(name: str, datatype: str, shape: list[int], data: list[Any] | None = None) -> dict[str, Any]:
    """A tensor of the Open Inference Protocol, or, without `data`, its description."""
    found: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    return found if data is None else {**found, "data": data}

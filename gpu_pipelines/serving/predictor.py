"""What predicts: the port between the server and a task's model."""

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

#: A tensor of the Open Inference Protocol: its name, its type, and the shape that it has, -1 for sizes that vary.
Output = tuple[str, str, list[int]]


#: What a model predicts from: an image, a text, or the numbers in some columns of a table.
IMAGES, TEXTS, NUMBERS = "images", "texts", "numbers"


class Inputs(NamedTuple):
    """What a model predicts from, as rows of a source have it.

    Attributes:
        kind: `IMAGES`, `TEXTS` or `NUMBERS`.
        field: of an instance; a table may have it as a column.
        columns: of numbers, those of a table that hold them.
        words: columns of a table that may hold a text in words, of a model that takes lists of words as they are; a
            list for any other is joined by blanks.
        chats: columns of a table that may hold messages, of a model that answers them; `tools` may stand beside them.
        pair: the field of the second text of an instance, of a model for pairs of texts; empty for others.
    """

    kind: str
    field: str
    columns: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    chats: tuple[str, ...] = ()
    pair: str = ""


class Predictor(ABC):
    """A model that is loaded.

    Args:
        directory: the exported model, in Hugging Face layout.
        settings: limits of what it takes.
        device: where the model goes.

    Attributes:
        task: what it is for, for people; whoever loads it says so.
        device: where it is.
        field: the one field of an instance, or of two texts the first one.
        pair: the field of the second text of an instance, of a model for pairs of texts; empty for others.
        value: the schema of its value, in the terms of JSON Schema; in the Open Inference Protocol it is a text.
        instance: the schema of an instance; left out, one with these fields.
        example: an instance that it can predict.
        labels: the classes; empty where there are none.
        parameters: the schema of each parameter of a request, in the terms of JSON Schema.
        answer: the schema of a prediction.
        outputs: the tensors of predictions in the Open Inference Protocol.
        advance: goes on with what `predict` left unfinished; None for a model that finishes everything at once.
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
        """Rows of many values at once, for whoever has no requests; called from several threads.

        Args:
            values: bytes of images, texts, or mappings of numbers by column.
            parameters: what `checked` gave.

        Returns:
            For each value its row, or the `WrongRequest` that says why it has none.
        """
        return [row_or_why_not(partial(self._row_of, value, parameters)) for value in values]

    def rows_of_documents(self, values: Sequence[Any], parameters: Any) -> list[Any]:
        """Rows of values that nobody asks for, as training makes rows of them; for a look at drift.

        Args:
            values: as `rows_of` takes them.
            parameters: what `checked` gave.

        Returns:
            As `rows_of`, but without the values of which a profile has nothing.
        """
        return self.rows_of(values, parameters)

    def _row_of(self, value: Any, parameters: Any) -> Any:
        return self.pending_of(value, parameters).row()

    def pending_of(self, value: Any, parameters: Any) -> Pending:
        """Reads a value that is in no request, as `read` reads an instance.

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
            rows: what `Pending.row` gave, one for each instance.

        Returns:
            For each row a prediction, a JSON value, or an `Unfinished`.
        """

    def answers(self, rows: Sequence[Any]) -> list[Any]:
        """What a client gets for a batch of rows; called from one thread.

        Args:
            rows: as `predict` takes them.

        Returns:
            What `predict` gives, or the `WrongRequest` that says why the model has no answer for the row.
        """
        return self.predict(rows)

    def columns(self, rows: Sequence[Any]) -> dict[str, np.ndarray]:
        """Rows as those of a dataset, so that drift can be measured between requests and training data.

        Drift of a task that does not override this is measured on predictions alone.

        Args:
            rows: what `Pending.row` gave.

        Returns:
            Arrays of shape (rows, *feature shape) by feature.
        """
        return {}

    def rows_of_dataset(self, columns: Mapping[str, np.ndarray]) -> list[Any]:
        """Rows of a dataset of the task as `predict` takes them; empty where that cannot be.

        Args:
            columns: arrays of shape (rows, *feature shape) by feature.
        """
        return []

    @property
    def network(self) -> Any:
        """The module that computes; None where there is none that can be looked into."""
        return getattr(self, "_model", None)

    def tensors(self, predictions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Predictions as tensors of the Open Inference Protocol; each is one text of JSON unless a task overrides this.

        Args:
            predictions: what `predict` returned.
        """
        return [tensor("prediction", "BYTES", [len(predictions)], [json.dumps(each) for each in predictions])]


def row_or_why_not(make: Callable[[], Any]) -> Any:
    """What a function gives, or the `WrongRequest` that it raises."""
    try:
        return make()
    except WrongRequest as wrong:
        return wrong


def tensor(name: str, datatype: str, shape: list[int], data: list[Any] | None = None) -> dict[str, Any]:
    """A tensor of the Open Inference Protocol, or, without `data`, what is said of it beforehand."""
    found: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    return found if data is None else {**found, "data": data}

"""The port between predictions and scores: what the predictions of a task's recipe mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.evaluation.scores import Scores

Columns = dict[str, np.ndarray]
#: Most rows of `test` that a report shows.
WORST_KEPT = 24


class Scoring(ABC):
    """Turns the output of a recipe's `predict` into scores. Each process that runs models has one.

    Args:
        dataset: what models are scored on.

    Attributes:
        rows_at_once: rows of a batch; None for as many as in training, for outputs that may be large.
    """

    rows_at_once: int | None = None

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    @abstractmethod
    def width(self, labels: list[str]) -> int | None:
        """The number of columns that `predict` returns for a row; None if it varies.

        Args:
            labels: the classes of the model; empty if there are none.
        """

    @abstractmethod
    def shape(self, rows: int, labels: list[str]) -> str:
        """The shape that `predict` has to return, for people.

        Args:
            rows: number of rows.
            labels: the classes of the model; empty if there are none.
        """

    @abstractmethod
    def scores(self, predicted: np.ndarray, split: str) -> Scores:
        """The scores of a model.

        Args:
            predicted: what `predict` returned for all rows of the split, float32 (rows, columns).
            split: `val` or `test`.
        """

    def trained_with(self, settings: Mapping[str, Any]) -> None:  # noqa: B027 (most need not know)
        """Takes the parameters of the training whose checkpoints are scored.

        Args:
            settings: values by the names of the parameters; empty if the training is not known.
        """

    @property
    def has_reference(self) -> bool:
        """Whether a model is scored against the model that the training began with."""
        return False

    def refer(self, predicted: np.ndarray, split: str) -> None:
        """Takes the predictions of the model that the training began with; called before `scores`.

        Args:
            predicted: for all rows of the split, float32 (rows, columns).
            split: `val` or `test`.
        """
        raise NotImplementedError

    def prepared(self, columns: Columns) -> Columns:
        """Rows of the dataset as they are scored; there may be more or fewer of them.

        Args:
            columns: arrays of shape (rows, *feature shape) by feature.
        """
        return columns

    def groups(self, columns: Columns, rows: int) -> list[np.ndarray]:
        """Chooses the rows to predict together, such as those of similar length.

        Args:
            columns: arrays of shape (rows, *feature shape) by feature, as `prepared` returned them.
            rows: number of rows.

        Returns:
            The indices of the rows of each group, int arrays.
        """
        return [np.arange(rows)]

    def aligned(self, predicted: np.ndarray, labels: list[str], recipe: Any) -> np.ndarray:
        """Puts the predictions of a model into the terms of the dataset, such as the order of its classes.

        Args:
            predicted: what `predict` returned, float32 (rows, columns of the model).
            labels: the classes of the model, in its order.
            recipe: the recipe of the model.

        Returns:
            Float32 (rows, columns of the dataset).
        """
        return predicted

    def worst(self, scores: Any) -> list[dict[str, Any]]:
        """The rows of `test` that a model does worst on, for people.

        Args:
            scores: what `scores` returned for `test`.

        Returns:
            For each row an object with `row`, `source`, and what the report shows of it.
        """
        return []

    def slice_values(self, column: str) -> list[str]:
        """The value of a column for each row of `test`, in the order of the scores.

        Args:
            column: the `slice_by` of the preparation.

        Raises:
            UserError: the dataset does not have it.
        """
        return self.dataset.slice_values("test", column)

    def examples(self, rows: Columns) -> tuple[list[dict[str, Any]], list[Columns]] | None:
        """Rows of `test` as requests to a server, and the columns of each; None if no server takes them.

        Args:
            rows: some rows of the split; rows that cannot be sent as they are may be left out.
        """
        return None

    def prediction(self, predicted: np.ndarray, labels: list[str], instance: dict[str, Any]) -> dict[str, Any]:
        """The server's answer to an instance.

        Args:
            predicted: what `predict` returned for the row, float32 (columns,).
            labels: the classes of the model, else the `names` of its recipe; empty if there are none.
            instance: an instance that `examples` returned.
        """
        return {}

"""What the predictions of a task's recipe mean: the port between the models that run and the scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.evaluation.scores import Scores

Columns = dict[str, np.ndarray]
#: Rows of `test` that a report shows at most.
WORST_KEPT = 24


class Scoring(ABC):
    """Takes what a recipe's `predict` gives; one is made in each process that runs models.

    Args:
        dataset: what models are scored on.

    Attributes:
        rows_at_once: rows of a batch; None for as many as were trained on, where the output may be large.
    """

    rows_at_once: int | None = None

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    @abstractmethod
    def width(self, labels: list[str]) -> int | None:
        """The number of columns that `predict` gives for a row, of a model of these classes; None if it varies."""

    @abstractmethod
    def shape(self, rows: int, labels: list[str]) -> str:
        """What `predict` is to give for so many rows, for people."""

    @abstractmethod
    def scores(self, predicted: np.ndarray, split: str) -> Scores:
        """The scores of a model.

        Args:
            predicted: of all rows of the split (rows, columns), float32.
            split: `val` or `test`.
        """

    def trained_with(self, settings: Mapping[str, Any]) -> None:  # noqa: B027 (most need not know)
        """Is told the parameters of the training whose checkpoints are scored, by name; none where there is none."""

    @property
    def has_reference(self) -> bool:
        """Whether a model is scored beside the one that the training began with."""
        return False

    def refer(self, predicted: np.ndarray, split: str) -> None:
        """Is told what the model that the training began with predicts for all rows of a split, before any scores."""
        raise NotImplementedError

    def prepared(self, columns: Columns) -> Columns:
        """Rows of the dataset as they are scored; there may be more of them, or fewer."""
        return columns

    def groups(self, columns: Columns, rows: int) -> list[np.ndarray]:
        """Numbers of the rows that are predicted together, such as those of similar length."""
        return [np.arange(rows)]

    def aligned(self, predicted: np.ndarray, labels: list[str], recipe: Any) -> np.ndarray:
        """Predictions of a model, by its classes and its recipe, in the terms and the order of the dataset's."""
        return predicted

    def worst(self, scores: Any) -> list[dict[str, Any]]:
        """The rows of `test` that a model does worst on, for people: `row`, `source`, and what is to be shown of it."""
        return []

    def slice_values(self, column: str) -> list[str]:
        """The value of a column for each row of `test`, in the order of the scores.

        Raises:
            UserError: the dataset does not hold it.
        """
        return self.dataset.slice_values("test", column)

    def examples(self, rows: Columns) -> tuple[list[dict[str, Any]], list[Columns]] | None:
        """Rows of `test` as a server gets them, and the columns of each; None where no server takes them.

        Args:
            rows: some rows of the split; those that cannot be sent as they are may be left out.
        """
        return None

    def prediction(self, predicted: np.ndarray, labels: list[str], instance: dict[str, Any]) -> dict[str, Any]:
        """A row of what `predict` gives, (columns,), as the server answers an instance."""
        return {}

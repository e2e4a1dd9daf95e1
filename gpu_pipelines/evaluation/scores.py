"""What all kinds of scores have in common, so that the evaluation need not know which kind it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gpu_pipelines.evaluation.bootstrap import Interval, Resampled

if TYPE_CHECKING:
    from typing_extensions import Self


class Scores(Protocol):
    """How a model did on the rows of a split."""

    @property
    def rows(self) -> int:
        """Number of rows scored."""

    @property
    def resampled(self) -> Resampled | None:
        """Each metric of resamples of the rows, the same for all models on as many rows; None if it is not known."""

    def metrics(self) -> dict[str, float]:
        """All metrics by name; NaN or infinity where a model has diverged."""

    def intervals(self) -> dict[str, Interval]:
        """The same, each with its confidence interval."""

    def details(self) -> dict[str, Any]:
        """What `evaluation.json` says of the test rows besides `rows` and `metrics`."""

    def subset(self, rows: np.ndarray) -> Self:
        """The scores of some of the rows; not of scores whose `resampled` is None."""


def summary(scores: Scores) -> dict[str, Any]:
    """The entry `test` of `evaluation.json`."""
    return {"rows": scores.rows, "metrics": scores.intervals(), **scores.details()}

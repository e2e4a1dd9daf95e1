"""What all kinds of scores have in common, so that the evaluation need not know which kind it has."""

from __future__ import annotations

from typing import Any, Protocol

from gpu_pipelines.components.evaluation.bootstrap import Interval


class Scores(Protocol):
    """How a model did on the rows of a split."""

    @property
    def rows(self) -> int:
        """Number of rows scored."""

    def metrics(self) -> dict[str, float]:
        """All metrics by name; NaN or infinity where a model has diverged."""

    def intervals(self) -> dict[str, Interval]:
        """The same, each with its confidence interval."""

    def details(self) -> dict[str, Any]:
        """What `evaluation.json` says of the test rows besides `rows` and `metrics`."""


def summary(scores: Scores) -> dict[str, Any]:
    """The entry `test` of `evaluation.json`."""
    return {"rows": scores.rows, "metrics": scores.intervals(), **scores.details()}

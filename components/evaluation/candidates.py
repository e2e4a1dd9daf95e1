"""What is ranked, and what ranks it: by the recipe of the training, or by a function of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpu_pipelines.components.evaluation.bootstrap import Interval
from gpu_pipelines.components.evaluation.scores import Scores
from gpu_pipelines.registry import RegisteredVersion


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that may be the best one.

    Attributes:
        path: its folder or file.
        step: steps taken, or whatever the number in its name counts.
        epoch: passes over the training rows; None if it is not known.
        rehearsal: trained on CPU processes in place of the GPUs that were chosen.
    """

    path: Path
    step: int
    epoch: float | None = None
    rehearsal: bool = False

    @property
    def name(self) -> str:
        return self.path.name


class Scorer(Protocol):
    """Scores candidates on a dataset.

    Attributes:
        candidates: all of them, oldest first; at least one.
        configuration: how they were trained: `settings` and `devices`, as far as it is known.
    """

    candidates: list[Candidate]
    configuration: dict[str, Any]

    def on_val(self, candidate: Candidate) -> Scores:
        """Scores a candidate on `val`."""

    def on_test(self, candidate: Candidate) -> tuple[Scores, list[dict[str, Any]]]:
        """Scores a candidate on `test`, and says which rows it gets wrong with the greatest certainty."""

    def champion_on_test(self, champion: RegisteredVersion) -> dict[str, Interval]:
        """Metrics of a registered model on `test`.

        Raises:
            UserError: it cannot be compared on these rows.
        """

    def export(self, candidate: Candidate, directory: Path) -> None:
        """Writes a candidate as the model to upload; it is the last that is done with it."""

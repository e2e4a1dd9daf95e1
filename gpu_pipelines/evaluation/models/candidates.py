"""The candidates and the port of scorers: scored by the recipe of the training, or by a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpu_pipelines.artifacts.checkpoint import METRICS
from gpu_pipelines.errors import UserError, some_of
from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.registry import RegisteredVersion

#: In messages that name folders.
MOST_NAMED = 8


class NoComparisonError(UserError):
    """The champion cannot be scored on these rows: its recipe is missing, cannot read them, or fails."""


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that may be the best one.

    Attributes:
        path: its folder or file.
        step: steps taken, or whatever the number in its name counts.
        epoch: passes over the training rows; None if it is not known.
        rehearsal: trained on CPU processes instead of the chosen GPUs.
        averages: names of the checkpoints whose mean it is; empty for a checkpoint itself.
        training: name of its training; empty if there is only one.
        ema: whether it is the moving average of the weights in the checkpoint.
        called: its name, if that is not the name of its folder.
    """

    path: Path
    step: int
    epoch: float | None = None
    rehearsal: bool = False
    averages: tuple[str, ...] = ()
    training: str = ""
    ema: bool = False
    called: str = ""

    @property
    def name(self) -> str:
        name = self.called or (f"{self.path.name} (ema)" if self.ema else self.path.name)
        return f"{self.training}/{name}" if self.training else name


def left_in(directory: Path) -> str:
    """What a training has left in a folder where no checkpoint was found, as part of a sentence."""
    names = [path.name for path in directory.iterdir() if not path.name.startswith(".") and path.name != METRICS]
    return f"only {some_of(names, MOST_NAMED)}" if names else "nothing"


@dataclass(frozen=True)
class WorkOnModels:
    """Work to do with several models, spread over all processes.

    Attributes:
        function: a function of a module; takes the runner of a process, a model source and one argument.
        arguments: the arguments, each with the number of its model.
        done: called in this thread with the number of a model and its answers, once they are complete.
    """

    function: Callable[..., Any]
    arguments: Sequence[tuple[int, Any]]
    done: Callable[[int, list[Any]], None]

    def with_models(self, numbers: Sequence[int]) -> WorkOnModels:
        """The part of the work with some of the models, which are renumbered: 0, 1 and so on."""
        given = [(numbers.index(number), each) for number, each in self.arguments if number in numbers]
        return WorkOnModels(self.function, given, lambda number, found: self.done(numbers[number], found))


class Scorer(Protocol):
    """Scores candidates on a dataset.

    Attributes:
        candidates: all of them, training by training, oldest first; at least one.
    """

    candidates: list[Candidate]

    def configuration_of(self, candidate: Candidate) -> dict[str, Any]:
        """How a candidate was trained: `settings` and `devices`, as far as known."""

    def on_val(self, done: Callable[[int, Scores], None]) -> None:
        """Scores all candidates on `val`; `done` is called with the number of each and its scores."""

    def on_test(self, candidate: Candidate) -> Scores:
        """Scores a candidate on `test`."""

    def champion_on_test(self, champion: RegisteredVersion) -> Scores:
        """Scores a registered model on `test`.

        Raises:
            UserError: it cannot be compared on these rows.
        """

    def latency(self, candidate: Candidate) -> dict[str, Any]:
        """How long a prediction of one row takes: `p50_ms`, `p95_ms`, `calls` and `device`."""

    def worst(self, scores: Scores) -> list[dict[str, Any]]:
        """The rows of `test` that a model does worst on; empty if not known."""

    def slice_values(self, column: str) -> list[str]:
        """The value of a column for each row of `test`, in the order of the scores.

        Raises:
            UserError: the dataset does not have it.
        """

    def export(self, candidate: Candidate, directory: Path) -> None:
        """Writes a candidate as the model to upload; the last call for it."""

    def close(self) -> None:
        """Ends processes that were started."""

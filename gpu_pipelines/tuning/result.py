"""The result of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint import METRICS, complete_checkpoints
from gpu_pipelines.artifacts.checkpoint_store import read_metrics
from gpu_pipelines.artifacts.documents import write_document
from gpu_pipelines.errors import UserError
from gpu_pipelines.numbers import figure
from gpu_pipelines.tuning.folder import StudyFolder, trial_folder
from gpu_pipelines.tuning.halving import Part
from gpu_pipelines.tuning.journal import Journal
from gpu_pipelines.tuning.sampler import Known
from gpu_pipelines.tuning.study import StudyRequest

RESULT = "result.json"


@dataclass(frozen=True)
class Trial:
    """A trial and what is known of it.

    Attributes:
        number: from 0.
        parameters: the values of the searched parameters.
        loss: lowest loss on val, nats; None if there is none, or it failed.
        rung: the last rung that it reached, from 0; -1 for none.
        is_whole: whether it was trained to its end.
        step: the steps that it was trained for.
        rows: rows that it was trained on, with repetition.
        seconds: the time of its processes.
        curve: steps, and losses on val after them.
        error: why it failed; empty if it did not.
    """

    number: int
    parameters: Mapping[str, Any]
    loss: float | None
    rung: int
    is_whole: bool
    step: int
    rows: int
    seconds: float
    curve: tuple[tuple[int, float], ...]
    error: str

    @property
    def known(self) -> Known:
        """The trial in the form for a sampler."""
        losses = {} if self.loss is None else {self.rung: self.loss}
        return Known(self.parameters, losses, self.is_whole, is_running=False)


@dataclass(frozen=True)
class TuningResult:
    """The result of a study.

    Attributes:
        best_parameters: the parameters of the trial with the lowest loss on val among those that came furthest.
        checkpoints: the checkpoints of that trial, or of the longer training with its parameters; a text if the study
            is in object storage, as is `report`.
        loss: lowest loss on val of that trial, nats.
        best: number of that trial.
        trials: all trials that were begun.
        seconds: the time of use of the machine.
        dollars: the cost of that time.
        ended_by: `trials`, or `budget` if that was spent first.
        report: the HTML page.
    """

    best_parameters: Mapping[str, Any]
    checkpoints: Path | str
    loss: float
    best: int
    trials: tuple[Trial, ...]
    seconds: float
    dollars: float
    ended_by: str
    report: Path | str

    @property
    def rows(self) -> int:
        """Rows that all trials were trained on."""
        return sum(trial.rows for trial in self.trials)

    def __repr__(self) -> str:
        return (
            f"TuningResult(trial {self.best} of {len(self.trials)}, loss on val {self.loss:.4f}, "
            f"best_parameters={dict(self.best_parameters)}, checkpoints={str(self.checkpoints)!r})"
        )

    def _repr_html_(self) -> str:
        """For a notebook: the result, the trials, and the curve of the best loss."""
        from gpu_pipelines.notebook_html import curve, table, text

        names = list(dict.fromkeys(name for trial in self.trials for name in trial.parameters))
        rows = [
            [
                "★" if trial.number == self.best else "",
                trial.number,
                figure(trial.loss),
                *map(trial.parameters.get, names),
            ]
            for trial in self.trials
        ]
        said = f"trial {self.best} of {len(self.trials)}: loss on val {figure(self.loss)}"
        return "".join(
            [
                text(said, "h4"),
                table(("", "trial", "loss on val", *names), rows),
                curve(
                    "loss on val",
                    [trial.loss for trial in self.trials],
                    [trial.number for trial in self.trials].index(self.best),
                ),
            ]
        )

    def save(self, folder: Path) -> None:
        """Writes the result into the folder of the study, for other programs."""
        content = {**asdict(self), "checkpoints": str(self.checkpoints), "report": str(self.report)}
        write_document(folder / RESULT, content)


def trials_of(request: StudyRequest, folder: StudyFolder, journal: Journal) -> list[Trial]:
    """The trials of a study, by number."""
    return [_trial(request, folder, journal, number) for number in sorted(journal.parameters)]


def _trial(request: StudyRequest, folder: StudyFolder, journal: Journal, number: int) -> Trial:
    outcomes = [(rung, journal.outcomes.get(Part(number, rung))) for rung in range(request.rungs)]
    known = [(rung, outcome) for rung, outcome in outcomes if outcome is not None]
    rung, last = known[-1] if known else (-1, None)
    seen = folder.seen_of(trial_folder(number))
    entries = [each for each in read_metrics(seen / METRICS) if each.get("val_loss") is not None]
    there = complete_checkpoints(seen)
    return Trial(
        number=number,
        parameters=journal.parameters[number],
        loss=last.loss if last else None,
        rung=rung,
        is_whole=rung == request.rungs - 1 and last is not None and last.loss is not None,
        step=there[-1].info.step if there else 0,
        rows=there[-1].info.samples_seen if there else 0,
        seconds=round(sum(outcome.seconds for _, outcome in known), 3),
        curve=tuple((int(each["step"]), float(each["val_loss"])) for each in entries),
        error=last.error if last else "",
    )


def best_of(trials: list[Trial]) -> Trial:
    """The trial with the lowest loss among those that came furthest.

    Raises:
        UserError: none has a loss.
    """
    ranked = sorted((-each.rung, each.loss, each.number) for each in trials if each.loss is not None)
    if not ranked:
        errors = dict.fromkeys(each.error for each in trials if each.error)
        raise UserError(
            f"No trial has a loss on val{': ' + ' '.join(errors) if errors else ''}.",
            "Give a larger budget, or a search space with values that can be trained with.",
        )
    return next(each for each in trials if each.number == ranked[0][2])

"""A study: trials begin, continue or stop early, until all have ended or the budget is spent.

A study is a function of its request. Results are taken in the order in which they would come if every row took the same
time, not as they come: so neither the machine's speed nor a kill changes which trials there are and which continue. A
study that was killed is replayed from its beginning; what is in its journal is not done again, and a trial that was cut
off continues from its newest checkpoint.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gpu_pipelines.artifacts.checkpoint import METRICS, complete_checkpoints
from gpu_pipelines.artifacts.checkpoint_store import read_metrics
from gpu_pipelines.distributed.signals import Signalled
from gpu_pipelines.errors import Interrupted, ProcessKilledError, UnfitParametersError, UserError, first_line
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.budget import Budget
from gpu_pipelines.tuning.folder import StudyFolder, trial_folder, winner_folder
from gpu_pipelines.tuning.halving import FIRST_RUNG, Halving, Part, shares_of_rungs, with_rungs
from gpu_pipelines.tuning.journal import Journal, Outcome
from gpu_pipelines.tuning.processes import Processes
from gpu_pipelines.tuning.sampler import Known, next_values
from gpu_pipelines.tuning.space import SearchSpace

#: After this many trials that failed for another reason than their parameters, and none with a loss, no further trial
#: is trained: the study itself is wrong.
MOST_FAILURES = 3
_SECONDS_BETWEEN_LOOKS = 0.05


@dataclass(frozen=True)
class SearchPlan:
    """The search space, and how to search it.

    Attributes:
        base: the parameters that are not searched for, the same in all trials.
        space: the parameters that are searched for.
        trials: the number of trials.
        parallel: the number of trials at the same time.
        seed: the seed of the choice of values.
        sampler: `tpe` or `random`.
        reduction: one trial in this many continues from a rung; 1 trains all to their end.
        first_rung: share of its steps before which no trial ends early.
    """

    base: TrainingSettings
    space: SearchSpace
    trials: int
    parallel: int
    seed: int
    sampler: str
    reduction: int
    first_rung: float = FIRST_RUNG


@dataclass(frozen=True)
class StudyRequest(SearchPlan):
    """The request of a study: a search on a dataset.

    Attributes:
        dataset: the place of the dataset: a directory, or `gs://…`.
        task: the task of the dataset.
        rows: rows of its training split.
    """

    dataset: str = field(kw_only=True)
    task: str = field(kw_only=True)
    rows: int = field(kw_only=True)

    @classmethod
    def of(cls, plan: SearchPlan, dataset: str, task: str, rows: int) -> StudyRequest:
        """The request for a plan and a dataset."""
        planned = {each.name: getattr(plan, each.name) for each in fields(SearchPlan)}
        return cls(**planned, dataset=dataset, task=task, rows=rows)

    @property
    def rungs(self) -> int:
        return len(self._shares)

    @property
    def _shares(self) -> list[float]:
        return shares_of_rungs(self.reduction, self.first_rung)

    def trained_with(self, values: dict[str, Any]) -> tuple[TrainingSettings, list[int]]:
        """The settings of a trial with some values, and the steps of its rungs."""
        settings = replace(self.base, **values).resolved(self.task, self.rows)
        # A trial needs its newest checkpoint to continue, and its best one if it wins: others would fill the disk.
        return with_rungs(replace(settings, keep_last=settings.keep_last or 1), self.rows, self._shares)


class BudgetSpentError(Exception):
    """The budget is spent."""


class Study:
    """Carries out a request.

    Args:
        request: the request.
        folder: the folder of the study.
        journal: the journal in the folder.
        processes: the processes that train, as many at once as the request says.
        budget: the budget for all of it.
        signalled: whether this process has to end.
        told: called with a line for people.
    """

    def __init__(
        self,
        request: StudyRequest,
        folder: StudyFolder,
        journal: Journal,
        processes: Processes,
        budget: Budget,
        signalled: Signalled,
        told: Any,
    ) -> None:
        self._request, self._folder, self._journal = request, folder, journal
        self._processes, self._budget, self._signalled, self._told = processes, budget, signalled, told
        trials = max(request.trials, len(journal.parameters))
        self._halving = Halving(trials, request.rungs, request.reduction)

    def run(self) -> None:
        """Trains all trials as far as they go.

        Raises:
            BudgetSpentError: the budget is spent; all results are in the journal.
            Interrupted: it was interrupted; the same request continues it.
            UserError: a trial failed for another reason than its parameters.
        """
        queue: list[tuple[float, int, Part]] = []
        clock, order = 0.0, 0
        while True:
            while len(queue) < self._request.parallel and (part := self._halving.next()) is not None:
                self._begin(part)
                order += 1
                heapq.heappush(queue, (clock + self._rows_of(part), order, part))
            if not queue:
                return
            clock, _, part = heapq.heappop(queue)
            self._halving.note(part, self._outcome(part).rank)

    def train_longer(self, trial: int, times: float) -> str:
        """Trains again with the values of a trial, for a multiple of its steps.

        Args:
            trial: its number.
            times: more than 1.

        Returns:
            The name of its folder in that of the study.

        Raises:
            BudgetSpentError: the budget is spent before its end.
            Interrupted: it was interrupted; the same request continues it.
            UserError: it failed.
        """
        settings, steps = self._request.trained_with(self._journal.parameters[trial])
        longer = replace(settings, max_steps=round(steps[-1] * times), checkpoint_every_steps=0)
        longer = replace(longer, checkpoint_every_steps=longer.steps_between_checkpoints(longer.max_steps))
        folder = winner_folder(trial, longer.max_steps)
        # Beyond the last rung, with a number of its own for each requested length.
        part = Part(trial, self._request.rungs + longer.max_steps)
        self._start(part, folder, longer, longer.max_steps)
        if self._outcome(part).loss is None:
            raise UserError(f"Trial {trial} failed when it was trained longer: {self._outcome(part).error}.")
        return folder

    def _begin(self, part: Part) -> None:
        if part.trial not in self._journal.parameters:
            values = next_values(self._request.space, self._known(), self._request.seed, self._request.sampler)
            self._journal.begin(part.trial, values)
        settings, steps = self._request.trained_with(self._journal.parameters[part.trial])
        self._start(part, trial_folder(part.trial), settings, steps[part.rung])

    def _start(self, part: Part, name: str, settings: TrainingSettings, until: int) -> None:
        """Starts to train a part, unless that was done before."""
        self._look()
        if part in self._journal.outcomes:
            return
        seen, folder = self._folder.seen_of(name), self._folder.directory / name
        folder.mkdir(parents=True, exist_ok=True)
        there = complete_checkpoints(seen)
        if there and there[-1].info.step >= until:
            self._end(part, Outcome(_loss(seen, until), 0.0))
            return
        job = {"settings": asdict(settings), "dataset": self._request.dataset, "until": until}
        self._processes.start(part, folder, {**job, "checkpoints": self._folder.checkpoints_of(name)})

    def _known(self) -> list[Known]:
        """The trials before the next one, with the results that have been taken."""
        losses, running = self._halving.losses, self._halving.running
        return [
            Known(
                self._journal.parameters[trial],
                {rung: of[trial] for rung, of in enumerate(losses) if trial in of},
                is_whole=trial in losses[-1],
                is_running=any(part.trial == trial for part in running),
            )
            for trial in range(self._halving.begun - 1)
        ]

    def _rows_of(self, part: Part) -> float:
        settings, steps = self._request.trained_with(self._journal.parameters[part.trial])
        before = steps[part.rung - 1] if part.rung else 0
        return (steps[part.rung] - before) * settings.global_batch_size

    def _outcome(self, part: Part) -> Outcome:
        while part not in self._journal.outcomes:
            if not self._look():
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        return self._journal.outcomes[part]

    def _look(self) -> bool:
        """Notes the parts that have ended, and ends all if it is time; returns whether any has ended."""
        self._budget.look()
        if self._signalled:
            raise Interrupted(f"stopped by {self._signalled.name}; all trials are kept")
        if self._budget.is_ending:
            self._processes.stop()
            while self._processes.are_running and not self._budget.is_over:
                self._budget.look()
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            self._processes.kill()
            raise BudgetSpentError
        ended = self._processes.ended()
        for part, folder in ended:
            name = folder.relative_to(self._folder.directory).as_posix()
            self._folder.look_at(name)
            seconds, error = self._processes.take(part)
            if error is not None and not self._is_of_the_trial(part, error):
                values = ", ".join(f"{name}={value}" for name, value in self._journal.parameters[part.trial].items())
                raise UserError(f"Trial {part.trial} ({values}) failed: {error.problem}", error.remedy) from error
            loss = None if error else _loss(self._folder.seen_of(name))
            self._end(part, Outcome(loss, round(seconds, 3), first_line(error) if error else ""))
        return bool(ended)

    def _is_of_the_trial(self, part: Part, error: UserError) -> bool:
        """Whether a trial failed alone, so that the study goes on with others."""
        if not isinstance(error, ProcessKilledError) or part.rung >= self._request.rungs:
            return isinstance(error, UnfitParametersError)
        # Most often the memory was full. If it is for all, the study is wrong; the last one is tried again.
        known = self._journal.outcomes.values()
        return len(known) < MOST_FAILURES - 1 or any(each.loss is not None for each in known)

    def _end(self, part: Part, outcome: Outcome) -> None:
        self._journal.end(part, outcome)
        result = f"failed: {outcome.error}" if outcome.loss is None else f"loss on val {outcome.loss:.4f}"
        share = f"{part.rung + 1} of {self._request.rungs}" if part.rung < self._request.rungs else "longer"
        self._told(f"trial {part.trial}, part {share}: {result}")


def _loss(seen: Path, until: int | None = None) -> float | None:
    """The lowest loss on val up to a step; None if there is none."""
    entries = read_metrics(seen / METRICS, up_to_step=until)
    return min((entry["val_loss"] for entry in entries if entry.get("val_loss") is not None), default=None)

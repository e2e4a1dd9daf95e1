"""Which trial goes on: asynchronous successive halving, by losses on val that the checkpoints have anyway.

Source: Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning, https://arxiv.org/abs/1810.05934,
algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_pipelines.training.settings import CHECKPOINTS_WHERE_NOT_SAID, TrainingSettings

#: Little is known of the last loss before the learning rate falls: of 400 trainings of benchmarks/training/tuning.py
#: the ranks after 13, 38 and 63 % of the steps correlate with the last ones by 0.32, 0.90 and 0.96.
FIRST_RUNG = 0.6
REDUCTION = 2


@dataclass(frozen=True)
class Part:
    """What is done of a trial at once: it is trained up to a rung.

    Attributes:
        trial: its number, from 0.
        rung: the rung that it is trained to, from 0.
    """

    trial: int
    rung: int


def shares_of_rungs(reduction: int, first_rung: float) -> list[float]:
    """The share of its steps that a trial has done at each rung: evenly on a logarithmic scale, the last one 1.

    Args:
        reduction: one trial in so many goes on from a rung; 1 where all trials go to the end.
        first_rung: share of the first one. A rung has about `reduction` times the steps of the one before.
    """
    if reduction == 1 or first_rung == 1:
        return [1.0]
    between = max(1, math.floor(math.log(1 / first_rung, reduction) + 1e-9))
    return [first_rung ** (1 - rung / between) for rung in range(between + 1)]


def usual_sizes(trials: int, rungs: int, reduction: int) -> list[int]:
    """How many of so many trials come to each rung, where those that lead early lead later, too."""
    sizes = [trials]
    while len(sizes) < rungs:
        sizes.append(max(1, sizes[-1] // reduction))
    return sizes


def with_rungs(settings: TrainingSettings, rows: int, shares: Sequence[float]) -> tuple[TrainingSettings, list[int]]:
    """The settings of a trial, whose checkpoints are such that each rung is one, and the steps of the rungs.

    Args:
        settings: resolved.
        rows: of the training split.
        shares: of its steps that a trial has done at each rung.
    """
    total = settings.total_steps(rows)
    until_first = max(1, round(CHECKPOINTS_WHERE_NOT_SAID * shares[0]))
    between = settings.checkpoint_every_steps or math.ceil(total * shares[0] / until_first)
    # Shares are powers, which may be a bit more than what they stand for.
    steps = [min(total, math.ceil(total * share / between - 1e-9) * between) for share in shares]
    return replace(settings, checkpoint_every_steps=between), steps


class Halving:
    """Says what is to be trained next. It knows trials by their numbers, and does the same for the same losses.

    Args:
        trials: how many are begun.
        rungs: how many there are.
        reduction: one trial in so many goes on from a rung.

    Attributes:
        running: what is being trained.
        losses: by trial, of each rung; infinite of those that failed.
        begun: number of trials so far.
    """

    def __init__(self, trials: int, rungs: int, reduction: int) -> None:
        self._trials, self._reduction = trials, reduction
        self._promoted: list[set[int]] = [set() for _ in range(rungs)]
        self.running: list[Part] = []
        self.losses: list[dict[int, float]] = [{} for _ in range(rungs)]
        self.begun = 0

    def next(self) -> Part | None:
        """What is to be trained now beside what is being trained; None where nothing is, for now or at all."""
        part = self._promotion() or self._new() or self._last_resort()
        if part is not None:
            self.running.append(part)
        return part

    def note(self, part: Part, loss: float) -> None:
        """Takes note of a loss on val; infinity of a trial that failed."""
        self.running.remove(part)
        self.losses[part.rung][part.trial] = loss

    @property
    def best(self) -> int | None:
        """The trial with the lowest loss among those that came furthest; None before any has one."""
        for losses in reversed(self.losses):
            if ranked := self._ranked(losses):
                return ranked[0]
        return None

    def _promotion(self) -> Part | None:
        for rung in range(len(self.losses) - 2, -1, -1):
            among = self.losses[rung]
            for trial in self._ranked(among)[: len(among) // self._reduction]:
                if trial not in self._promoted[rung]:
                    self._promoted[rung].add(trial)
                    return Part(trial, rung + 1)
        return None

    def _new(self) -> Part | None:
        if self.begun == self._trials:
            return None
        self.begun += 1
        return Part(self.begun - 1, 0)

    def _last_resort(self) -> Part | None:
        """Of few trials none may be promoted to the end; then the best one goes on, so that one training is whole."""
        best = self.best
        if self.running or best is None or self._ranked(self.losses[-1]):
            return None
        rung = max(rung for rung, losses in enumerate(self.losses) if best in losses)
        self._promoted[rung].add(best)
        return Part(best, rung + 1)

    def _ranked(self, losses: dict[int, float]) -> list[int]:
        """Trials that have not failed, here or later, the lowest loss first; of equal ones the first."""
        failed = {trial for each in self.losses for trial, loss in each.items() if not math.isfinite(loss)}
        return [trial for _, trial in sorted((loss, trial) for trial, loss in losses.items() if trial not in failed)]

"""Decides which trials continue: asynchronous successive halving, by the losses on val of the checkpoints.

Source: Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning, https://arxiv.org/abs/1810.05934,
algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_pipelines.training.settings import CHECKPOINTS_WHERE_NOT_SAID, TrainingSettings

#: Early losses say little before the learning rate falls: over 400 trainings of benchmarks/training/tuning.py,
#: the ranks after 13, 38 and 63 % of the steps correlate with the last ones by 0.32, 0.90 and 0.96.
FIRST_RUNG = 0.6
REDUCTION = 2


@dataclass(frozen=True)
class Part:
    """A part of a trial that is trained at once: up to a rung.

    Attributes:
        trial: its number, from 0.
        rung: the rung to train to, from 0.
    """

    trial: int
    rung: int


def shares_of_rungs(reduction: int, first_rung: float) -> list[float]:
    """The share of a trial's steps at each rung: evenly spaced on a logarithmic scale, the last one 1.

    Args:
        reduction: one trial in this many continues from a rung; 1 if all trials continue to the end.
        first_rung: share of the first rung. A rung has about `reduction` times the steps of the one before.
    """
    if reduction == 1 or first_rung == 1:
        return [1.0]
    between = max(1, math.floor(math.log(1 / first_rung, reduction) + 1e-9))
    return [first_rung ** (1 - rung / between) for rung in range(between + 1)]


def usual_sizes(trials: int, rungs: int, reduction: int) -> list[int]:
    """How many trials reach each rung if the early leaders also lead later."""
    sizes = [trials]
    while len(sizes) < rungs:
        sizes.append(max(1, sizes[-1] // reduction))
    return sizes


def with_rungs(settings: TrainingSettings, rows: int, shares: Sequence[float]) -> tuple[TrainingSettings, list[int]]:
    """The settings of a trial with a checkpoint at each rung, and the steps of the rungs.

    Args:
        settings: the resolved settings.
        rows: rows of the training split.
        shares: shares of its steps at the rungs.
    """
    total = settings.total_steps(rows)
    until_first = max(1, round(CHECKPOINTS_WHERE_NOT_SAID * shares[0]))
    between = settings.checkpoint_every_steps or math.ceil(total * shares[0] / until_first)
    # Shares are powers, which may be slightly larger than the exact value.
    steps = [min(total, math.ceil(total * share / between - 1e-9) * between) for share in shares]
    return replace(settings, checkpoint_every_steps=between), steps


class Halving:
    """Decides what to train next. It knows trials by number, and the same losses give the same decisions.

    Args:
        trials: the number of trials to begin.
        rungs: the number of rungs.
        reduction: one trial in this many continues from a rung.

    Attributes:
        running: the parts that are being trained.
        losses: for each trial its loss at each rung; infinite for a failed one.
        begun: number of trials so far.
    """

    def __init__(self, trials: int, rungs: int, reduction: int) -> None:
        self._trials, self._reduction = trials, reduction
        self._promoted: list[set[int]] = [set() for _ in range(rungs)]
        self.running: list[Part] = []
        self.losses: list[dict[int, float]] = [{} for _ in range(rungs)]
        self.begun = 0

    def next(self) -> Part | None:
        """The part to train now beside the running ones; None if there is none, for now or at all."""
        part = self._promotion() or self._new() or self._last_resort()
        if part is not None:
            self.running.append(part)
        return part

    def note(self, part: Part, loss: float) -> None:
        """Records a loss on val; infinity for a failed trial."""
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
        """With few trials, none may be promoted to the end; then the best continues, so that one training completes."""
        best = self.best
        if self.running or best is None or self._ranked(self.losses[-1]):
            return None
        rung = max(rung for rung, losses in enumerate(self.losses) if best in losses)
        self._promoted[rung].add(best)
        return Part(best, rung + 1)

    def _ranked(self, losses: dict[int, float]) -> list[int]:
        """Trials that have not failed, here or later, by loss; of equal ones the first."""
        failed = {trial for each in self.losses for trial, loss in each.items() if not math.isfinite(loss)}
        return [trial for _, trial in sorted((loss, trial) for trial, loss in losses.items() if trial not in failed)]

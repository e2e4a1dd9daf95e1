"""After which steps a training records its loss, prints it, and saves its state although no checkpoint is due."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gpu_pipelines.errors import UserError
from gpu_pipelines.step_environment import PREEMPTION_HOURS

#: Entries in the log of a short training; a longer one has one in so many seconds.
ENTRIES = 100
SECONDS_BETWEEN_ENTRIES = 10.0
#: Entries of so many seconds are summed over the processes and written together.
SECONDS_BETWEEN_LINES = 1.0
#: The time between saves where the user has not said it: the first comes soon, because it is measured.
FIRST_SAVE = LEAST_BETWEEN_SAVES = 60.0
#: Longer only where saves would take more than this share of the time. An assumption.
MOST_BETWEEN_SAVES, MOST_SHARE = 15 * 60.0, 0.01
#: Of a GPU and its share of the machine and the network: 419 interruptions that were not planned, in 54 days on 16,384
#: H100s. Source: The Llama 3 Herd of Models, https://arxiv.org/abs/2407.21783, section 3.3.4.
HOURS_BETWEEN_FAILURES = 54 * 24 * 16_384 / 419
#: A training of long steps must not be silent until its pace is known.
_FIRST_LINES = (1, 5, 20)


class Cadence:
    """Decides by durations that all processes agree on, so that they do the same after the same step.

    Args:
        total: steps of the training.
        step: step that it continues from.
        between_interruptions: seconds for which the training is expected to go on before it is interrupted; None where
            the state is not saved by time.

    Attributes:
        told: step after which the last line was printed.
    """

    def __init__(self, total: int, step: int, between_interruptions: float | None) -> None:
        self._total, self._from, self._between = total, step, between_interruptions
        self._between_saves = FIRST_SAVE
        self._every = max(1, math.ceil(total / ENTRIES))
        self.told, self._together = step, 1
        self._paced = self._every <= _FIRST_LINES[-1]
        self._unsaved = 0.0

    def entry_is_due(self, step: int) -> bool:
        """Whether an entry ends with this step."""
        first = not self._paced and step - self._from in _FIRST_LINES
        return first or step % self._every == 0 or step == self._total

    def line_is_due(self, step: int) -> bool:
        """Whether entries are written after this step, which ends one."""
        return self.entry_is_due(step) and (step - self.told >= self._together or step == self._total)

    def line_written(self, step: int, seconds: float) -> None:
        """Notes a line.

        Args:
            step: after which it was written.
            seconds: since the one before; the same number on all processes.
        """
        steps, self.told = step - self.told, step
        self._unsaved += seconds
        if step - self._from >= _FIRST_LINES[1]:  # the first step allocates and compiles
            self._paced = True
            per_second = steps / max(seconds, 1e-6)
            in_time = int(SECONDS_BETWEEN_ENTRIES * per_second)
            self._every = max(1, min(math.ceil(self._total / ENTRIES), in_time))
            self._together = math.ceil(SECONDS_BETWEEN_LINES * per_second)

    @property
    def save_is_due(self) -> bool:
        """Whether enough time has passed to save the state."""
        return self._between is not None and self._unsaved >= self._between_saves

    def saved(self, held_up: float, writing: float) -> None:
        """Notes a checkpoint.

        Args:
            held_up: seconds for which it blocked the training.
            writing: seconds until the one before was whole; both the same numbers on all processes.
        """
        self._unsaved = 0.0
        if self._between is not None:
            self._between_saves = seconds_between_saves(held_up, writing, self._between)


def seconds_between_saves(held_up: float, writing: float, between_interruptions: float) -> float:
    """The time between saves that loses the least time to saves and interruptions together.

    It is the square root of 2 × cost of a save × time between interruptions. Sources: Young 1974, A first order
    approximation to the optimum checkpoint interval, https://doi.org/10.1145/361147.361115; Daly 2006, A higher order
    estimate of the optimum checkpoint interval for restart dumps, https://doi.org/10.1016/j.future.2004.11.016.

    Args:
        held_up: seconds for which a save blocks the training.
        writing: seconds until it is whole; the next one would have to wait for it.
        between_interruptions: seconds.
    """
    best = math.sqrt(2 * held_up * between_interruptions)
    return max(LEAST_BETWEEN_SAVES, writing, min(best, max(MOST_BETWEEN_SAVES, held_up / MOST_SHARE)))


def seconds_between_interruptions(processes: int, nodes: int, environment: Mapping[str, str]) -> float:
    """Expected seconds until a training is interrupted without notice.

    Args:
        processes: of all nodes; each has a GPU.
        nodes: machines, each of which may be preempted.
        environment: such as `os.environ`, which may give the expected hours of Spot machines.

    Raises:
        UserError: its value is not a number of hours.
    """
    per_hour = processes / HOURS_BETWEEN_FAILURES
    if text := environment.get(PREEMPTION_HOURS, ""):
        try:
            hours = float(text)
        except ValueError:
            hours = 0.0
        if not 0 < hours < math.inf:
            raise UserError(f"{PREEMPTION_HOURS} is {text!r}.", "Give hours, more than 0, such as 24.")
        per_hour += nodes / hours
    return 3600 / per_hour

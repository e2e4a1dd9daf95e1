"""After which steps a training writes a line, and saves its state though no checkpoint is due."""

from __future__ import annotations

import math

#: Lines of a short training; a longer one writes one in so many seconds.
LINES = 100
SECONDS_BETWEEN_LINES = 10.0
#: What an interruption without notice may cost at the most, where the user has not said how often to save.
SECONDS_BETWEEN_SAVES = 15 * 60.0
#: A training of long steps must not be silent until its pace is known.
_FIRST_LINES = (1, 5, 20)


class Cadence:
    """Goes by seconds that all processes have agreed on, so that they do the same after the same step.

    Args:
        total: steps of the training.
        step: step that it continues from.
        saves: whether the state is saved by time as well.
    """

    def __init__(self, total: int, step: int, saves: bool) -> None:
        self._total, self._from, self._saves = total, step, saves
        self._every = max(1, math.ceil(total / LINES))
        self._paced = self._every <= _FIRST_LINES[-1]
        self._unsaved = 0.0

    def line_is_due(self, step: int) -> bool:
        """Whether a line is written after this step."""
        first = not self._paced and step - self._from in _FIRST_LINES
        return first or step % self._every == 0 or step == self._total

    def line_written(self, step: int, steps: int, seconds: float) -> None:
        """Takes note of a line.

        Args:
            step: after which it was written.
            steps: since the one before.
            seconds: the same number on all processes.
        """
        self._unsaved += seconds
        if step - self._from >= _FIRST_LINES[1]:  # the first step allocates and compiles
            self._paced = True
            in_time = int(SECONDS_BETWEEN_LINES * steps / max(seconds, 1e-6))
            self._every = max(1, min(math.ceil(self._total / LINES), in_time))

    @property
    def save_is_due(self) -> bool:
        """Whether so much time has passed that the state is worth saving."""
        return self._saves and self._unsaved >= SECONDS_BETWEEN_SAVES

    def saved(self) -> None:
        """Takes note of a checkpoint."""
        self._unsaved = 0.0

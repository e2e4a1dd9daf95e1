"""What a study may cost, and has cost: dollars by the price of the machine and the time for which it is used.

Time is written down before it is used. Whoever kills a study loses a few seconds of its budget, and gains none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from gpu_pipelines.artifacts.documents import read_document, write_document
from gpu_pipelines.tuning.folder import SPENT

#: So much is written down ahead, and again when no more than half of it is left; in object storage, where each time is
#: a request, it is more.
SECONDS_AHEAD, SECONDS_AHEAD_AFAR = 10.0, 40.0
#: What is left for the trials to save their state in, at most, as a share of the budget; and for killing them.
_SECONDS_TO_STOP, _SHARE_TO_STOP, _SECONDS_TO_KILL = 28.0, 0.2, 3.0


class Budget:
    """Counts the time of a study.

    Args:
        folder: of the study; what it has cost before is there.
        dollars: that it may cost in all, over all its starts; 0 for no limit.
        dollars_per_hour: price of this machine; 0 where it costs nothing.
        began: when this start of the study began, on the clock of `time.monotonic`; left out, now.
        keep: makes the file that is written last where the folder does not; None where it does.
    """

    def __init__(
        self,
        folder: Path,
        dollars: float,
        dollars_per_hour: float,
        began: float | None = None,
        keep: Callable[[str], None] | None = None,
    ) -> None:
        self._path, self._keep = folder / SPENT, keep
        self._ahead = SECONDS_AHEAD_AFAR if keep else SECONDS_AHEAD
        self._price = dollars_per_hour / 3600
        self.most_seconds = dollars / self._price if dollars and self._price else math.inf
        self._before = float(read_document(self._path, "study")["seconds"]) if self._path.exists() else 0.0
        self._began = time.monotonic() if began is None else began
        self._written = 0.0
        self.look()

    @property
    def seconds(self) -> float:
        """For which the machine was used, in all starts of the study together."""
        return self._before + time.monotonic() - self._began

    @property
    def dollars(self) -> float:
        return self.seconds * self._price

    def look(self) -> None:
        """Writes down what is used next; called several times a second."""
        if self._written - self.seconds < self._ahead / 2:
            self._write(min(self.seconds + self._ahead, max(self.most_seconds, self.seconds)))

    @property
    def is_ending(self) -> bool:
        """Whether the trials have to save their state now."""
        reserve = min(_SECONDS_TO_STOP, _SHARE_TO_STOP * self.most_seconds) if self.most_seconds < math.inf else 0.0
        return self.seconds >= self.most_seconds - reserve - _SECONDS_TO_KILL

    @property
    def is_over(self) -> bool:
        """Whether the trials have to be killed."""
        return self.seconds >= self.most_seconds - _SECONDS_TO_KILL

    def close(self) -> None:
        """Writes down what was used, and no more."""
        self._write(self.seconds)

    def _write(self, seconds: float) -> None:
        write_document(self._path, {"seconds": round(seconds, 3)})
        if self._keep:
            self._keep(SPENT)
        self._written = seconds

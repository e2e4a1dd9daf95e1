"""The cost of a study and its limit: dollars, from the price of the machine and the time for which it is used.

Time is recorded before it is used. Killing a study loses a few seconds of its budget, and gains none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from gpu_pipelines.artifacts.documents import read_document, write_document
from gpu_pipelines.tuning.folder import SPENT

#: Seconds recorded ahead, and again when no more than half of them are left; more in object storage, where each record
#: is a request.
SECONDS_AHEAD, SECONDS_AHEAD_AFAR = 10.0, 40.0
#: The most that is kept for the trials to save their state, as a share of the budget; and for killing them.
_SECONDS_TO_STOP, _SHARE_TO_STOP, _SECONDS_TO_KILL = 28.0, 0.2, 3.0


class Budget:
    """Counts the time of a study.

    Args:
        folder: the folder of the study, with its earlier cost.
        dollars: the most that it may cost over all its starts; 0 for no limit.
        dollars_per_hour: price of this machine; 0 if it costs nothing.
        began: when this start of the study began, on the clock of `time.monotonic`; by default now.
        keep: stores the file durably if the folder does not; None if it does.
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
        """The time of use of the machine, over all starts of the study."""
        return self._before + time.monotonic() - self._began

    @property
    def dollars(self) -> float:
        return self.seconds * self._price

    def look(self) -> None:
        """Records the time to be used next; called several times a second."""
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
        """Records exactly the time that was used."""
        self._write(self.seconds)

    def _write(self, seconds: float) -> None:
        write_document(self._path, {"seconds": round(seconds, 3)})
        if self._keep:
            self._keep(SPENT)
        self._written = seconds

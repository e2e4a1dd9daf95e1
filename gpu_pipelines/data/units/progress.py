"""Lines that say how far a preparation is."""

from __future__ import annotations

import time

from gpu_pipelines.data.sources.row_streams import Meter

SECONDS_BETWEEN_LINES = 2.0


class Progress:
    """Counts rows and, every two seconds, prints how many there are, how fast, and how long the rest will take.

    Args:
        what: what is done, such as "reading".
        meter: knows how much of the source has been read.
    """

    def __init__(self, what: str, meter: Meter) -> None:
        self._what = what
        self._meter = meter
        self._started = self._printed = time.monotonic()
        self.rows = 0

    def advance(self, rows: int = 1, waiting: float = 0.0) -> None:
        """So many more rows are done.

        Args:
            rows: how many.
            waiting: share of the rows read that are not done yet, where they are read ahead.
        """
        self.rows += rows
        now = time.monotonic()
        if now - self._printed < SECONDS_BETWEEN_LINES:
            return
        self._printed = now
        share, passed = self._meter.share * (1 - waiting), now - self._started
        left = f"{passed * (1 - share) / share:,.0f} s left" if share else "time left unknown"
        print(f"{self._what}: {self.rows:,} rows  {self.rows / passed:,.0f} rows/s  {share:.0%}  {left}", flush=True)

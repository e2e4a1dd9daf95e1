"""Waiting for another machine at the start: for so long, and not in silence."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpu_pipelines.errors import UserError

_SECONDS_BETWEEN_MESSAGES = 30.0


class Waiting:
    """Counts down, and says every 30 s what is waited for.

    Args:
        seconds: how long.
        check: is called again and again; ends the wait by raising.
    """

    def __init__(self, seconds: float, check: Callable[[], None]) -> None:
        self._deadline, self._seconds, self._check = time.monotonic() + seconds, seconds, check
        self._next_message = time.monotonic() + 1.0

    def for_(self, what: str, hint: str) -> None:
        """To be called while waiting for `what`; sleeps a little.

        Raises:
            UserError: the time is over.
        """
        self._check()
        now = time.monotonic()
        if now > self._deadline:
            raise UserError(f"Waited {self._seconds:g} s for {what}.", hint)
        if now > self._next_message:
            print(f"waiting for {what}, {self._deadline - now:.0f} s more at most", flush=True)
            self._next_message = now + _SECONDS_BETWEEN_MESSAGES
        time.sleep(0.1)

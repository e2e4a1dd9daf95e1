"""Waiting for another machine at the start, with a limit and with messages."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpu_pipelines.errors import UserError

_SECONDS_BETWEEN_MESSAGES = 30.0


class Waiting:
    """Counts down, and prints every 30 s what it waits for.

    Args:
        seconds: the limit.
        check: called repeatedly; raises to end the wait.
    """

    def __init__(self, seconds: float, check: Callable[[], None]) -> None:
        self._deadline, self._seconds, self._check = time.monotonic() + seconds, seconds, check
        self._next_message = time.monotonic() + 1.0

    def for_(self, what: str, hint: str) -> None:
        """Sleeps a little; call it while waiting for `what`.

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

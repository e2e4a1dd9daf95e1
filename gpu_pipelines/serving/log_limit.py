"""Bounds on what is logged, whatever clients send."""

from __future__ import annotations

import logging
import threading
import time

#: Lines of a kind within this many seconds.
_LINES, _SECONDS = 10, 10.0


class LogLimit(logging.Filter):
    """Lets a few lines through in each interval, and adds to the next one how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._begun, self._passed, self._held = float("-inf"), 0, 0

    def allows(self) -> tuple[bool, int]:
        """Whether a line may be written now, and how many were left out since the last one."""
        with self._lock:
            now = time.monotonic()
            if now - self._begun >= _SECONDS:
                self._begun, self._passed = now, 0
            if self._passed >= _LINES:
                self._held += 1
                return False, 0
            self._passed += 1
            held, self._held = self._held, 0
            return True, held

    def filter(self, record: logging.LogRecord) -> bool:
        allowed, held = self.allows()
        if allowed and held:
            record.msg, record.args = f"{record.getMessage()} ({held} lines like this were left out)", ()
        return allowed

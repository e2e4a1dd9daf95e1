"""How much the server takes at the same time, so that its memory has a bound whatever clients send."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TooBusyError(Exception):
    """The server has as much in hand as it takes."""


class Admission:
    """Counts requests and the bytes of their bodies; used by one thread.

    Args:
        max_requests: at the same time.
        max_bytes: of their bodies together.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests, self._max_bytes = max_requests, max_bytes
        self._requests = self._bytes = 0

    @contextmanager
    def request(self, size: int) -> Iterator[None]:
        """Takes a request until the end of the block.

        Args:
            size: bytes that its body has at most.

        Raises:
            TooBusyError: there are too many, or too large ones.
        """
        # One request is always taken, however little may be held.
        if self._requests >= self._max_requests or (self._requests and self._bytes + size > self._max_bytes):
            raise TooBusyError
        self._requests += 1
        self._bytes += size
        try:
            yield
        finally:
            self._requests -= 1
            self._bytes -= size

"""Bounds on the work that the server accepts at one time, so that its memory is bounded whatever clients send."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TooBusyError(Exception):
    """The server already has as much work as it accepts."""


class Admission:
    """Counts requests, the bytes of their bodies and the pixels to decode; used by one thread.

    Whatever the bounds, one request is always accepted.

    Args:
        max_requests: requests at the same time.
        max_bytes: bytes of their bodies together.
        max_pixels: pixels of the images that wait to be decoded.
    """

    def __init__(self, max_requests: int, max_bytes: int, max_pixels: int) -> None:
        self._max_requests, self._max_bytes, self._max_pixels = max_requests, max_bytes, max_pixels
        self.requests = self.bytes = self.pixels = 0

    @contextmanager
    def body(self) -> Iterator[Body]:
        """Counts the bytes of an arriving body until the end of the block."""
        found = Body(self)
        try:
            yield found
        finally:
            self.bytes -= found.size

    @contextmanager
    def request(self) -> Iterator[None]:
        """Accepts a request whose body has arrived, until the end of the block.

        A request is counted only once its body has arrived, so that slow clients do not use up what others need.

        Raises:
            TooBusyError: there are too many requests.
        """
        if self.requests >= self._max_requests:
            raise TooBusyError
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    @contextmanager
    def decoding(self, pixels: int) -> Iterator[None]:
        """Accepts the images of a request until the end of the block.

        Raises:
            TooBusyError: too many pixels wait to be decoded.
        """
        if self.pixels and self.pixels + pixels > self._max_pixels:
            raise TooBusyError
        self.pixels += pixels
        try:
            yield
        finally:
            self.pixels -= pixels

    def add_bytes(self, size: int, own: int) -> None:
        """Counts bytes that have arrived.

        Args:
            size: bytes to add.
            own: bytes of the same body that are counted already.

        Raises:
            TooBusyError: all bodies together would have too many bytes.
        """
        if self.bytes > own and self.bytes + size > self._max_bytes:
            raise TooBusyError
        self.bytes += size


class Body:
    """The counted bytes of one body."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.size = 0

    def add(self, size: int) -> None:
        """Counts bytes that have arrived. Raises `TooBusyError`."""
        self._admission.add_bytes(size, self.size)
        self.size += size

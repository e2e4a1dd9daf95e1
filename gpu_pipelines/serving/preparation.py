"""Makes rows of the instances of a request, so that no request keeps the others waiting with what it sends.

Reading a request and decoding small images takes a moment, and is done at once. Large images wait for separate threads,
which take an image of each request in turn and have a lower priority in the system than all others.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from gpu_pipelines.serving.fair_queue import FairQueue, Flow

#: Most pixels of a request that is prepared at once; decoding a PNG of this size takes about 50 ms.
AT_ONCE = 1_000_000
#: Niceness of the threads that decode large images; the system's scale ends at 19.
_NICENESS = 10


class Pending(NamedTuple):
    """An instance that was read and checked as far as possible without decoding it.

    Attributes:
        pixels: the work of decoding it. A character of a text counts as `PIXELS_OF_A_CHARACTER`.
        row: decodes it. Raises `WrongRequest`.
    """

    pixels: int
    row: Callable[[], Any]


#: Encoding a character of a text takes about as long as decoding this many pixels of a PNG.
PIXELS_OF_A_CHARACTER = 10


class FairDecoder:
    """Threads that decode large images.

    Args:
        threads: their number.
        max_pixels: most pixels decoded at the same time; one image is always decoded.
    """

    def __init__(self, threads: int, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self._queue: FairQueue[tuple[Pending, Future[Any]]] = FairQueue()
        self._changed = threading.Condition()
        self._at_once = 0
        self._closed = False
        self._threads = [threading.Thread(target=self._run, name="decode", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, pending: Sequence[Pending]) -> tuple[Flow, list[Future[Any]]]:
        """Adds the instances of a request; returns the argument of `drop`, and their rows in the same order."""
        flow, found = Flow(), []
        with self._changed:
            for each in pending:
                found.append(future := Future[Any]())
                self._queue.add(flow, (each, future), each.pixels)
            self._changed.notify_all()
        return flow, found

    def drop(self, flow: Flow) -> None:
        """Drops the images of a request that were not begun."""
        with self._changed:
            self._queue.drop(flow)

    def close(self) -> None:
        """Ends the threads after their current images."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":  # where each thread has its own priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while taken := self._next():
            pending, future = taken
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(pending.row())
                except Exception as error:  # goes to whoever waits for this instance
                    future.set_exception(error)
            with self._changed:
                self._at_once -= pending.pixels
                self._changed.notify_all()

    def _next(self) -> tuple[Pending, Future[Any]] | None:
        with self._changed:
            while not self._closed:
                first = self._queue.first()
                if first and (not self._at_once or self._at_once + first[1][0].pixels <= self._max_pixels):
                    self._at_once += first[1][0].pixels
                    return self._queue.pop()[1]
                self._changed.wait()
            return None

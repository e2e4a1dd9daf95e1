"""From the instances of a request to rows, so that no request keeps the others waiting with what it sends.

Reading a request and decoding small images takes a moment, and is done at once. Large images wait for threads of their
own, which take an image of each request in turn and which the system lets run after all others.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from gpu_pipelines.serving.fair_queue import FairQueue, Flow

#: Pixels of a request up to which it is prepared at once; decoding a PNG of this size takes about 50 ms.
AT_ONCE = 1_000_000
#: Of the threads that decode large images; the system's scale ends at 19.
_NICENESS = 10


class Pending(NamedTuple):
    """An instance that was read and found right as far as can be seen without decoding it.

    Attributes:
        pixels: how much work decoding it is. A character of a text counts as `PIXELS_OF_A_CHARACTER`.
        row: decodes it. Raises `WrongRequest`.
    """

    pixels: int
    row: Callable[[], Any]


#: Encoding a character of a text takes about as long as decoding so many pixels of a PNG.
PIXELS_OF_A_CHARACTER = 10


class FairDecoder:
    """Threads that decode what is large.

    Args:
        threads: so many.
        max_pixels: that are decoded at the same time; one image always is.
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
        """Adds the instances of a request; gives what `drop` takes, and their rows in the same order."""
        flow, found = Flow(), []
        with self._changed:
            for each in pending:
                found.append(future := Future[Any]())
                self._queue.add(flow, (each, future), each.pixels)
            self._changed.notify_all()
        return flow, found

    def drop(self, flow: Flow) -> None:
        """Leaves undone what is not begun."""
        with self._changed:
            self._queue.drop(flow)

    def close(self) -> None:
        """Ends the threads once they have done what they are at."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":  # where a thread has a priority of its own
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

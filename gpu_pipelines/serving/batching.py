"""Rows of concurrent requests in common batches, for a model that one thread uses."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

Predict = Callable[[Sequence[Any]], list[Any]]

#: Batches that fail one after the other before the server counts as ill.
FAILURES_OF_THE_ILL = 3


class QueueFullError(Exception):
    """More rows wait than may."""


class _Request:
    """A request whose rows are in the queue."""

    def __init__(self, rows: int) -> None:
        self.predictions: list[Any] = [None] * rows
        self.missing = rows
        self.future: Future[list[Any]] = Future()

    def put(self, place: int, prediction: Any) -> None:
        if isinstance(prediction, Exception):
            if not self.future.done():
                self.future.set_exception(prediction)
            return
        self.predictions[place] = prediction
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result(self.predictions)


class Batcher:
    """Predicts rows in the order in which they come, as many at once as are there.

    While the model is busy rows gather by themselves. A batch that is not full waits for requests that are being
    prepared, and only for those, so that a single client never waits.

    Args:
        predict: called in one thread; gives a prediction for each row.
        max_batch: rows that it gets at most.
        max_wait_ms: how long a batch waits at most, milliseconds.
        max_waiting: rows that may wait.
    """

    def __init__(self, predict: Predict, max_batch: int, max_wait_ms: float, max_waiting: int) -> None:
        self._predict = predict
        self._max_batch, self._max_wait, self._max_waiting = max_batch, max_wait_ms / 1000, max_waiting
        self._rows: deque[tuple[Any, _Request, int]] = deque()
        self._changed = threading.Condition()
        self._coming = 0
        self._closed = False
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    @property
    def is_ill(self) -> bool:
        """Whether batch after batch has failed, as after an error of the GPU that only a new process mends."""
        return self._failures >= FAILURES_OF_THE_ILL

    @contextmanager
    def more_to_come(self) -> Iterator[None]:
        """Says that rows are being prepared, for which a batch may wait."""
        with self._changed:
            self._coming += 1
        try:
            yield
        finally:
            with self._changed:
                self._coming -= 1
                self._changed.notify()

    def submit(self, rows: Sequence[Any]) -> Future[list[Any]]:
        """Adds the rows of a request.

        Returns:
            Their predictions, in the same order.

        Raises:
            QueueFullError: too many wait already.
        """
        request = _Request(len(rows))
        with self._changed:
            if len(self._rows) + len(rows) > self._max_waiting:
                raise QueueFullError
            self._rows.extend((row, request, place) for place, row in enumerate(rows))
            self._changed.notify()
        return request.future

    def close(self) -> None:
        """Predicts what is there, then ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            predictions = self._predicted([row for row, _, _ in batch])
            failed = all(isinstance(prediction, Exception) for prediction in predictions)
            self._failures = self._failures + 1 if failed else 0
            for (_, request, place), prediction in zip(batch, predictions, strict=True):
                request.put(place, prediction)

    def _next(self) -> list[tuple[Any, _Request, int]]:
        """The next batch; empty when there will be none."""
        with self._changed:
            while not self._rows and not self._closed:
                self._changed.wait()
            until = time.monotonic() + self._max_wait
            while len(self._rows) < self._max_batch and self._coming and not self._closed:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return [self._rows.popleft() for _ in range(min(len(self._rows), self._max_batch))]

    def _predicted(self, rows: list[Any]) -> list[Any]:
        """Predictions, or errors in their places: where a batch fails its halves are tried, so that one row that
        cannot be predicted, or too many for the memory, does not fail the others."""
        try:
            return self._predict(rows)
        except Exception as error:  # the library's errors are not documented, and the thread must go on
            if len(rows) == 1:
                print(f"a prediction failed: {''.join(traceback.format_exception(error))}", file=sys.stderr, flush=True)
                return [error]
        half = len(rows) // 2
        return self._predicted(rows[:half]) + self._predicted(rows[half:])

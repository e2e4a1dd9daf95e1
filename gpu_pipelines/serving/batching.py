"""Rows of concurrent requests in common batches, for a model that one thread uses."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from gpu_pipelines.serving.fair_queue import FairQueue, Flow
from gpu_pipelines.serving.log_limit import LogLimit
from gpu_pipelines.serving.request_body import WrongRequest

Predict = Callable[[Sequence[Any]], list[Any]]

#: Consecutive failed batches after which the server counts as ill.
FAILURES_OF_THE_ILL = 3


class QueueFullError(Exception):
    """More rows wait than are allowed."""


class Unfinished:
    """The result of a model for a row that needs more work, such as a text that is being written.

    Attributes:
        work: the most steps that are left.
        prediction: None until the row is done.
    """

    work: int = 1
    prediction: dict[str, Any] | None = None


def one_for_each(rows: Sequence[Any], predictions: list[Any]) -> list[Any]:
    """The predictions of some rows. Raises ValueError if there are more or fewer of them than rows."""
    if len(predictions) != len(rows):
        raise ValueError(f"The model returned {len(predictions)} predictions for {len(rows)} rows.")
    return predictions


#: Continues some rows until one of them is done or the function says that others wait.
Advance = Callable[[Sequence[Any], Callable[[], bool]], None]


class _Request(Flow):
    """A request whose rows are in the queue."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.predictions: list[Any] = [None] * rows
        self.missing = rows
        self.future: Future[list[Any]] = Future()
        #: The same request in the queue of texts to write, which has a clock of its own.
        self.writing = Flow()

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for any more of its predictions."""
        return self.future.done()

    def put(self, place: int, prediction: Any) -> None:
        if isinstance(prediction, WrongRequest):
            prediction = WrongRequest(f"instances[{place}]: {prediction}")
        self.predictions[place] = prediction
        self.missing -= 1
        # A future that is running can no longer be cancelled; a cancelled one takes no result.
        if (isinstance(prediction, Exception) or not self.missing) and self.future.set_running_or_notify_cancel():
            if isinstance(prediction, Exception):
                self.future.set_exception(prediction)
            else:
                self.future.set_result(self.predictions)


class _Place(NamedTuple):
    """A row, and the place of its prediction."""

    row: Any
    request: _Request
    place: int

    def put(self, prediction: Any) -> None:
        if not self.request.is_over:
            self.request.put(self.place, prediction)


class Batcher:
    """Predicts rows in batches as large as are waiting, in turns that are fair to all requests.

    While the model is busy, rows gather. A batch that is not full waits for requests that are being prepared, and only
    for those, so that a single client never waits. Rows whose text is being written are continued together, and new
    ones join them between two tokens. The rows of a cancelled request are dropped.

    Args:
        predict: called in one thread; returns a prediction, an `Unfinished` or a `WrongRequest` for each row.
        max_batch: most rows in a batch.
        max_wait_ms: longest wait of a batch, milliseconds.
        max_waiting: most rows that may wait.
        advance: continues unfinished rows; called in the same thread.
        writes_at_once: most rows for `advance`, besides the first row of each request that would otherwise have none.
        observe: called with the rows of each batch and its seconds.
    """

    def __init__(
        self,
        predict: Predict,
        max_batch: int,
        max_wait_ms: float,
        max_waiting: int,
        advance: Advance | None = None,
        writes_at_once: int = 1,
        observe: Callable[[int, float], None] | None = None,
    ) -> None:
        self._predict, self._advance, self._observe = predict, advance, observe
        self._max_batch, self._max_wait, self._max_waiting = max_batch, max_wait_ms / 1000, max_waiting
        self._writes_at_once = writes_at_once
        self._rows: FairQueue[_Place] = FairQueue()
        self._to_write: FairQueue[_Place] = FairQueue()
        self._writing: list[_Place] = []
        self._changed = threading.Condition()
        self._coming = 0
        self._closed = False
        self._failures = 0
        self._told = LogLimit()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    @property
    def is_ill(self) -> bool:
        """Whether batch after batch has failed, as after a GPU error that only a new process clears."""
        return self._failures >= FAILURES_OF_THE_ILL

    @property
    def waiting(self) -> int:
        """Rows that wait for the model."""
        return len(self._rows)

    @property
    def writing(self) -> int:
        """Rows whose text is being written, or that wait for that."""
        return len(self._to_write) + len(self._writing)

    @contextmanager
    def more_to_come(self) -> Iterator[None]:
        """Marks that rows are being prepared, for which a batch may wait."""
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
            Their predictions, in the same order. If the future is cancelled, the rest is not predicted.

        Raises:
            QueueFullError: too many wait already.
        """
        request = _Request(len(rows))
        with self._changed:
            # Rows whose text is being written have left the first queue, but they are held as well.
            if self.waiting + self.writing + len(rows) > self._max_waiting:
                raise QueueFullError
            for place, row in enumerate(rows):
                self._rows.add(request, _Place(row, request, place), 1.0)
            self._changed.notify()
        request.future.add_done_callback(lambda future: self._forget(request))
        return request.future

    def close(self) -> None:
        """Predicts the rows that wait, then ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _forget(self, request: _Request) -> None:
        """Drops what waits of a request that was cancelled or has failed."""
        with self._changed:
            self._rows.drop(request)
            self._to_write.drop(request.writing)

    def _run(self) -> None:
        while True:
            batch = self._next()
            if batch is None:
                return
            if batch:
                self._put(batch, self._measured(batch))
            if self.writing:
                self._write()

    def _put(self, batch: list[_Place], predictions: list[Any]) -> None:
        # A row without an answer is no fault of the server.
        failed = all(isinstance(each, Exception) and not isinstance(each, WrongRequest) for each in predictions)
        self._failures = self._failures + 1 if failed else 0
        for place, prediction in zip(batch, predictions, strict=True):
            if isinstance(prediction, Unfinished):
                with self._changed:
                    self._to_write.add(place.request.writing, place._replace(row=prediction), prediction.work)
            else:
                place.put(prediction)

    def _next(self) -> list[_Place] | None:
        """The next batch, empty if there is only unfinished work; None once there will be no more."""
        with self._changed:
            while not len(self._rows) and not self.writing and not self._closed:
                self._changed.wait()
            if not len(self._rows):
                return [] if self.writing else None
            until = time.monotonic() + self._max_wait
            while len(self._rows) < self._max_batch and self._coming and not self._closed and not self.writing:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return [self._rows.pop()[1] for _ in range(min(len(self._rows), self._max_batch))]

    def _write(self) -> None:
        """Continues the texts whose turn it is."""
        self._writing = self._to_go_on_with()
        if not self._writing:
            return
        failed = self._advanced(self._writing)
        for place in self._writing:
            if id(place) in failed:
                place.put(failed[id(place)])
            elif place.row.prediction is not None:
                place.put(place.row.prediction)
        self._failures = self._failures + 1 if len(failed) == len(self._writing) else 0
        self._writing = [each for each in self._writing if id(each) not in failed and each.row.prediction is None]

    def _to_go_on_with(self) -> list[_Place]:
        """As many rows as may be written at once, those begun first; also one row of each request that would otherwise
        have none, up to as many again."""
        found = [place for place in self._writing if not place.request.is_over]
        there = {id(place.request.writing) for place in found}
        with self._changed:
            while len(found) < 2 * self._writes_at_once and len(self._to_write):
                if len(found) < self._writes_at_once:
                    taken = self._to_write.pop()
                elif not (taken := self._to_write.pop_if(lambda flow: id(flow) not in there)):  # type: ignore[assignment]
                    break
                flow, place = taken
                found.append(place)
                there.add(id(flow))
        return found

    def _advanced(self, places: list[_Place]) -> dict[int, Exception]:
        """Continues rows, in halves after a failure; returns the errors of those that fail alone."""
        assert self._advance is not None
        try:
            self._advance([place.row for place in places], lambda: len(self._rows) > 0)
        except Exception as error:  # see _predicted
            if len(places) == 1:
                self._tell(error)
                return {id(places[0]): error}
        else:
            return {}
        half = len(places) // 2
        return {**self._advanced(places[:half]), **self._advanced(places[half:])}

    def _measured(self, batch: list[_Place]) -> list[Any]:
        started = time.monotonic()
        predictions = self._predicted([place.row for place in batch])
        if self._observe:
            self._observe(len(batch), time.monotonic() - started)
        return predictions

    def _predicted(self, rows: list[Any]) -> list[Any]:
        """Predictions, or errors in their places. After a failure the halves of the batch are tried, so that one row
        that cannot be predicted, or too many for the memory, do not fail the others."""
        try:
            return one_for_each(rows, self._predict(rows))
        except Exception as error:  # the library's errors are not documented, and the thread must go on
            if len(rows) == 1:
                self._tell(error)
                return [error]
        half = len(rows) // 2
        return self._predicted(rows[:half]) + self._predicted(rows[half:])

    def _tell(self, error: Exception) -> None:
        allowed, held = self._told.allows()
        if allowed:
            more = f" ({held} like this were left out)" if held else ""
            shown = "".join(traceback.format_exception(error))
            # stderr may be closed or its disk full; the thread must go on.
            with suppress(OSError):
                print(f"a prediction failed: {shown}{more}", file=sys.stderr, flush=True)

"""How rows of concurrent requests come into batches."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from gpu_pipelines.serving.admission import Admission, TooBusyError
from gpu_pipelines.serving.batching import Batcher, QueueFullError, Unfinished
from gpu_pipelines.serving.fair_queue import FairQueue, Flow
from gpu_pipelines.serving.preparation import FairDecoder, Pending


class Model:
    """Doubles numbers; waits at the first batch until it may go on. Fails for texts."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.busy, self.go_on = threading.Event(), threading.Event()

    def predict(self, rows: Sequence[Any]) -> list[Any]:
        self.batches.append(list(rows))
        self.busy.set()
        assert self.go_on.wait(30)
        return [row + row + 0 for row in rows]


@pytest.fixture
def model() -> Iterator[Model]:
    found = Model()
    yield found
    found.go_on.set()


def test_rows_gather_while_the_model_is_busy(model: Model) -> None:
    batcher = Batcher(model.predict, max_batch=4, max_wait_ms=0, max_waiting=100)
    first = batcher.submit([1])
    assert model.busy.wait(30)
    others = [batcher.submit([10, 11, 12]), batcher.submit([20, 21])]
    model.go_on.set()
    assert [future.result(30) for future in (first, *others)] == [[2], [20, 22, 24], [40, 42]]
    assert model.batches == [[1], [10, 20, 11, 21], [12]]
    batcher.close()


def test_a_batch_waits_for_what_is_being_prepared_and_for_nothing_else(model: Model) -> None:
    model.go_on.set()
    batcher = Batcher(model.predict, max_batch=4, max_wait_ms=60_000, max_waiting=100)
    assert batcher.submit([1]).result(30) == [2], "nobody prepares anything, so it does not wait a minute"
    with batcher.more_to_come():
        first = batcher.submit([2])
        assert model.batches == [[1]]
        second = batcher.submit([3])
    assert (first.result(30), second.result(30)) == ([4], [6])
    assert model.batches == [[1], [2, 3]]
    batcher.close()


def test_a_row_that_fails_fails_its_own_request_only(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    model.go_on.set()
    batcher = Batcher(model.predict, max_batch=8, max_wait_ms=60_000, max_waiting=100)
    with batcher.more_to_come():
        good, bad, also_good = batcher.submit([1, 2]), batcher.submit([3, "x"]), batcher.submit([4])
    assert good.result(30) == [2, 4]
    assert also_good.result(30) == [8]
    with pytest.raises(TypeError):
        bad.result(30)
    assert "a prediction failed: Traceback" in capsys.readouterr().err
    assert not batcher.is_ill
    for _ in range(3):
        with pytest.raises(TypeError):
            batcher.submit(["x"]).result(30)
    assert batcher.is_ill
    batcher.submit([1]).result(30)
    assert not batcher.is_ill
    batcher.close()


def test_a_row_without_a_prediction_fails_its_own_request_only() -> None:
    """A predictor of a user's own may leave out what it cannot read."""
    batcher = Batcher(lambda rows: [row for row in rows if row], max_batch=8, max_wait_ms=60_000, max_waiting=100)
    with batcher.more_to_come():
        good, bad = batcher.submit([1]), batcher.submit([2, 0])
    assert good.result(30) == [1]
    with pytest.raises(ValueError, match="returned 0 predictions for 1 rows"):
        bad.result(30)
    assert batcher.submit([3]).result(30) == [3]
    batcher.close()


def test_a_row_that_fails_ends_nothing_where_nobody_reads_the_log(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.close(read)
    model.go_on.set()
    batcher = Batcher(model.predict, max_batch=8, max_wait_ms=0, max_waiting=100)
    with os.fdopen(write, "wb", buffering=0) as nobody:
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(nobody, write_through=True))
        with pytest.raises(TypeError):
            batcher.submit(["x"]).result(30)
        assert batcher.submit([1]).result(30) == [2]
    batcher.close()


def test_the_queue_has_an_end_and_closing_empties_it(model: Model) -> None:
    batcher = Batcher(model.predict, max_batch=1, max_wait_ms=0, max_waiting=3)
    first = batcher.submit([1])
    assert model.busy.wait(30)
    waiting = batcher.submit([2, 3])
    with pytest.raises(QueueFullError):
        batcher.submit([4, 5])
    last = batcher.submit([6])
    threading.Timer(0.1, model.go_on.set).start()
    batcher.close()
    assert [future.result(0) for future in (first, waiting, last)] == [[2], [4, 6], [12]]


def test_a_new_request_does_not_wait_for_all_rows_of_a_large_one(model: Model) -> None:
    batcher = Batcher(model.predict, max_batch=4, max_wait_ms=0, max_waiting=1000)
    first = batcher.submit([0])
    assert model.busy.wait(30)
    large, small = batcher.submit(list(range(100, 228))), batcher.submit([1])
    model.go_on.set()
    assert (first.result(30), small.result(30), len(large.result(30))) == ([0], [2], 128)
    assert 1 in model.batches[1]
    batcher.close()


def test_what_is_given_up_is_not_predicted(model: Model) -> None:
    batcher = Batcher(model.predict, max_batch=4, max_wait_ms=0, max_waiting=8)
    first = batcher.submit([0])
    assert model.busy.wait(30)
    given_up = batcher.submit(list(range(10, 18)))
    assert given_up.cancel()
    other = batcher.submit([1, 2])  # there would be no room beside the eight
    model.go_on.set()
    assert (first.result(30), other.result(30)) == ([0], [2, 4])
    batcher.close()
    assert model.batches == [[0], [1, 2]]


class Writing(Unfinished):
    """A row that needs some steps, and notes in which of them it was advanced."""

    def __init__(self, steps: int) -> None:
        self.work = self.left = steps


class Writer:
    """A model whose rows take as many steps as they say; it waits in its first until it may go on."""

    def __init__(self) -> None:
        self.together: list[list[int]] = []
        self.busy, self.go_on = threading.Event(), threading.Event()

    def predict(self, rows: Sequence[int]) -> list[Any]:
        return [Writing(row) for row in rows]

    def advance(self, texts: Sequence[Writing], others_wait: Callable[[], bool]) -> None:
        self.busy.set()
        assert self.go_on.wait(30)
        if any(text.work == 13 for text in texts):
            raise ValueError("thirteen")
        self.together.append([text.work for text in texts])
        for text in texts:
            text.left -= 1
            if not text.left:
                text.prediction = {"steps": text.work}


def test_texts_join_those_that_are_being_written(capsys: pytest.CaptureFixture[str]) -> None:
    """The rows of a large request hold all places for a hundred steps; a small one is answered after one step."""
    writer = Writer()
    batcher = Batcher(writer.predict, 4, 0, 100, writer.advance, writes_at_once=4)
    large = batcher.submit([100] * 8)
    assert writer.busy.wait(30)
    small, wrong = batcher.submit([1]), batcher.submit([13])
    writer.go_on.set()
    assert small.result(30) == [{"steps": 1}]
    assert next(step for step, texts in enumerate(writer.together) if 1 in texts) < 5
    with pytest.raises(ValueError, match="thirteen"):
        wrong.result(30)
    assert large.result(30) == [{"steps": 100}] * 8
    assert max(map(len, writer.together)) <= 6, "one place more for each request that has none"
    assert batcher.writing == 0
    batcher.close()
    assert capsys.readouterr().err.count("a prediction failed") == 1


def test_turns_are_fair_and_nothing_waits_for_ever() -> None:
    queue: FairQueue[str] = FairQueue()
    large, served = Flow(), []
    for number in range(4):
        queue.add(large, f"large {number}", 10.0)
    for number in range(60):
        queue.add(Flow(), f"small {number}", 1.0)
        served.append(queue.pop()[1])
    assert served[0] == "large 0"
    assert served[1] == "small 0", "what comes new is due at once"
    assert "large 1" in served, "small ones that come without an end do not keep it out"
    queue.drop(large)
    assert len(queue) + len(served) == 60 + sum(name.startswith("large") for name in served)


def test_images_are_decoded_in_turns_within_a_budget() -> None:
    decoder, order, at_once, most = FairDecoder(threads=3, max_pixels=25), [], [0], [0]
    lock, go_on = threading.Lock(), threading.Event()

    def pending(name: str, pixels: int) -> Pending:
        def row() -> str:
            with lock:
                order.append(name)
                at_once[0] += pixels
                most[0] = max(most[0], at_once[0])
            assert go_on.wait(30)
            with lock:
                at_once[0] -= pixels
            return name

        return Pending(pixels, row)

    _, large = decoder.submit([pending(f"large {number}", 12) for number in range(10)])
    dropped, never = decoder.submit([pending("dropped", 12)] * 3)
    while len(order) < 2:
        time.sleep(0.001)
    _, small = decoder.submit([pending("small", 1)])
    decoder.drop(dropped)
    go_on.set()
    assert small[0].result(30) == "small"
    assert [future.result(30) for future in large] == [f"large {number}" for number in range(10)]
    assert order.index("small") < 6
    assert most[0] <= 25
    assert not any(future.done() for future in never[1:])
    decoder.close()


def test_admission_counts_requests_bytes_and_pixels() -> None:
    admission = Admission(max_requests=2, max_bytes=10, max_pixels=100)
    with admission.body() as one, admission.body() as two:
        one.add(20)  # one is always taken
        with pytest.raises(TooBusyError):
            two.add(1)
    with admission.body() as one, admission.body() as two:
        one.add(4)
        two.add(6)
        with pytest.raises(TooBusyError):
            one.add(1)
    with admission.request(), admission.request(), pytest.raises(TooBusyError), admission.request():
        pass
    with admission.decoding(1000), pytest.raises(TooBusyError), admission.decoding(1):
        pass
    with admission.decoding(50), admission.decoding(50):
        pass
    assert (admission.requests, admission.bytes, admission.pixels) == (0, 0, 0)

"""How rows of concurrent requests come into batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gpu_pipelines.serving.admission import Admission, TooBusyError
from gpu_pipelines.serving.batching import Batcher, QueueFullError


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
    assert model.batches == [[1], [10, 11, 12, 20], [21]]
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


def test_admission_counts_requests_and_bytes() -> None:
    admission = Admission(max_requests=2, max_bytes=10)
    with admission.request(20), pytest.raises(TooBusyError), admission.request(1):  # one is always taken
        pass
    with admission.request(4), admission.request(6), pytest.raises(TooBusyError), admission.request(0):
        pass
    with admission.request(10):
        pass

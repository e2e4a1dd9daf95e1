"""The rows of every step as the engine reads them: those of the order, whole, whatever was read before."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpu_pipelines.artifacts.dataset import Dataset, Feature, Split
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.training.rows.ahead import Coming
from gpu_pipelines.training.rows.batches import SampleOrder, TrainingBatches, validation_batches
from gpu_pipelines.training.settings import TrainingSettings

pytestmark = pytest.mark.usefixtures("group_of_one")
ROWS, BATCH = 103, 12


class Numbers:
    """A recipe whose batches are the rows' numbers; it notes on which thread each was made."""

    def __init__(self, loss_tokens: bool = False) -> None:
        self._loss_tokens = loss_tokens
        self.threads: list[str] = []

    def batch(self, columns: dict[str, np.ndarray], device: torch.device) -> dict[str, torch.Tensor]:
        assert all(array.flags.writeable for array in columns.values()), "torch would warn of a mapped array"
        self.threads.append(threading.current_thread().name)
        return {"number": torch.from_numpy(columns["number"])}

    def loss_tokens(self, columns: dict[str, np.ndarray]) -> int | None:
        return int(columns["number"].sum()) if self._loss_tokens else None


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Split:
    directory = tmp_path_factory.mktemp("dataset")
    with DatasetWriter(
        directory,
        task="image_classification",
        source="numbers",
        features={"number": Feature("int32"), "label": Feature("int32")},
        labels=["even", "odd"],
        preprocessing={},
        rows_per_shard=10,
    ) as writer:
        for number in range(ROWS):
            writer.add("train", "", {"number": number, "label": number % 2})
        writer.finish()
    return Dataset(directory).split("train")


def batches_of(rows: Split, recipe: Any = None, on_thread: bool | None = True, **settings: Any) -> TrainingBatches:
    """Batches made on a thread, as for a GPU; `None` makes them as for the device, which is a CPU."""
    given = TrainingSettings(global_batch_size=BATCH, seed=3, **settings)
    return TrainingBatches(recipe or Numbers(), rows, given, torch.device("cpu"), on_thread)


def numbers(batches: TrainingBatches, step: int) -> list[int]:
    pieces, _ = batches.of_step(step)
    return [number for batch, _ in pieces for number in batch["number"].tolist()]


@pytest.mark.parametrize("on_thread", [True, None])
@pytest.mark.parametrize("counts", [False, True])
def test_a_step_has_the_rows_of_the_order_whatever_step_was_read_before(
    rows: Split, counts: bool, on_thread: bool | None
) -> None:
    order = SampleOrder(ROWS, BATCH, seed=3)
    batches = batches_of(rows, Numbers(counts), on_thread)
    assert numbers(batches, 0) == order.rows_of_step(0).tolist(), "which the training measures"
    batches.begin(17, 100)
    # It continues where its checkpoint was; what was made ready for a step that does not come is of no effect.
    for step in (17, 18, 19, 40, 41, 5, 98, 99):
        pieces, total = batches.of_step(step)
        expected = order.rows_of_step(step).tolist()
        assert pieces[0][0]["number"].tolist() == expected
        assert total == (sum(expected) if counts else BATCH)
    batches.settle()
    batches.close()


@pytest.mark.parametrize("counts", [False, True])
def test_two_steps_are_made_ready_while_one_is_computed_and_none_behind_the_last(rows: Split, counts: bool) -> None:
    recipe = Numbers(counts)
    batches = batches_of(rows, recipe)
    batches.begin(0, 4)
    made = []
    for step in range(4):
        batches.of_step(step)
        made.append(_settled(recipe))
    assert made == [3, 4, 4, 4]
    assert all(name.startswith("batches") for name in recipe.threads), "never by who computes"
    batches.close()


def _settled(recipe: Numbers) -> int:
    """How many batches are made when no more are begun."""
    count = -1
    while count != len(recipe.threads):
        count = len(recipe.threads)
        time.sleep(0.05)
    return count


def test_on_a_cpu_they_are_made_by_who_computes_when_it_has_time(rows: Split) -> None:
    recipe, here = Numbers(), threading.current_thread().name
    batches = batches_of(rows, recipe, on_thread=None)
    batches.begin(0, 9)
    batches.of_step(0)
    assert recipe.threads == [here] * 2, "no more than it waits for: loss tokens are summed a step ahead"
    for made in (3, 3):
        batches.make_begun()
        assert recipe.threads == [here] * made
    assert numbers(batches, 1) == SampleOrder(ROWS, BATCH, seed=3).rows_of_step(1).tolist()
    assert recipe.threads == [here] * 3, "it was made before"
    batches.close()


@pytest.mark.parametrize("on_thread", [True, None])
def test_an_error_while_a_step_is_made_ready_ends_the_training(rows: Split, on_thread: bool | None) -> None:
    recipe = Numbers()
    batches = batches_of(rows, recipe, on_thread)
    batches.begin(0, 9)
    batches.of_step(0)
    batches.make_begun()
    _settled(recipe)
    recipe.batch = lambda *_: 1 // 0  # type: ignore[method-assign]
    batches.of_step(1)  # it and the next were made before
    with pytest.raises(ZeroDivisionError):
        numbers(batches, 2) + numbers(batches, 3)
    batches.close()


def test_rows_that_are_made_ready_do_not_change_those_in_use(rows: Split) -> None:
    batches = batches_of(rows)
    batches.begin(0, 30)
    (first, _), *_ = batches.of_step(0)[0]
    before = first["number"].clone()
    for step in range(1, 30):
        batches.of_step(step)
    assert torch.equal(first["number"], before)
    batches.close()


def test_a_machine_with_a_copy_tells_with_the_others_how_their_fetching_went(
    rows: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk of one machine is too small, all read the streamed order; those that did not tell waited."""
    batches, alone = batches_of(rows, streaming="on"), batches_of(rows, streaming="on").streaming_figures()
    assert alone == {}, "no machine fetches anything"
    others = [torch.tensor([5e6]), torch.tensor([3.0, 2e9, 1.0])]
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda own, **_: own.add_(others.pop(0)))
    figures = batches.streaming_figures()
    assert figures.pop("fetched_mb_per_second") > 0
    assert figures == {"stalled_seconds": 3.0, "cache_gb": 2.0}


def test_a_batch_for_a_gpu_may_hold_a_tensor_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_for: list[Any] = []
    stream = SimpleNamespace(wait_event=waited_for.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    made: Future[Any] = Future()
    made.set_result(("a batch", "copied"))
    Coming(made).usable([torch.ones(3)])  # such as the lengths that pack_padded_sequence takes
    assert waited_for == ["copied"]


def test_the_time_that_batches_take_is_counted_once(rows: Split) -> None:
    batches = batches_of(rows)
    batches.of_step(4)
    assert batches.seconds_taken() > 0
    assert batches.seconds_taken() == 0
    batches.close()


def test_micro_batches_are_the_batch_in_order_with_its_last_piece_smaller(rows: Split) -> None:
    whole, pieces = batches_of(rows), batches_of(rows, micro_batch_size=5)
    made, total = pieces.of_step(7)
    assert [loss_tokens for _, loss_tokens in made] == [5, 5, 2]
    assert total == BATCH
    assert [number for batch, _ in made for number in batch["number"].tolist()] == numbers(whole, 7)
    counted, total = batches_of(rows, Numbers(loss_tokens=True), micro_batch_size=5).of_step(7)
    assert [loss_tokens for _, loss_tokens in counted] == [int(batch["number"].sum()) for batch, _ in made]
    assert total == sum(loss_tokens for _, loss_tokens in counted)


def test_validation_reads_every_row_once_and_in_order(rows: Split) -> None:
    read = list(validation_batches(Numbers(), rows, 8, torch.device("cpu")))  # type: ignore[arg-type]
    assert [number for batch, _ in read for number in batch["number"].tolist()] == list(range(ROWS))
    assert [loss_tokens for _, loss_tokens in read] == [8] * 12 + [7]

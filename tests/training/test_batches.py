"""The rows of every step as the engine reads them: those of the order, whole, whatever was read before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from gpu_pipelines.artifacts.dataset import Dataset, DatasetWriter, Feature, Split
from gpu_pipelines.training.batches import SampleOrder, TrainingBatches, validation_batches
from gpu_pipelines.training.settings import TrainingSettings

ROWS, BATCH = 103, 12


class Numbers:
    """A recipe whose batches are the rows' numbers, on the CPU whatever the device."""

    def __init__(self, loss_tokens: bool = False) -> None:
        self._loss_tokens = loss_tokens

    def batch(self, columns: dict[str, np.ndarray], device: torch.device) -> dict[str, torch.Tensor]:
        assert all(array.flags.writeable for array in columns.values()), "torch would warn of a mapped array"
        return {"number": torch.from_numpy(columns["number"])}

    def loss_tokens(self, columns: dict[str, np.ndarray]) -> int | None:
        return int(columns["number"].sum()) if self._loss_tokens else None


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


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


def batches_of(rows: Split, device: str, recipe: Any = None, **settings: Any) -> TrainingBatches:
    given = TrainingSettings(global_batch_size=BATCH, seed=3, **settings)
    return TrainingBatches(recipe or Numbers(), rows, given, torch.device(device))


def numbers(batches: TrainingBatches, step: int) -> list[int]:
    pieces, _ = batches.of_step(step)
    return [number for batch, _ in pieces for number in batch["number"].tolist()]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_step_has_the_rows_of_the_order_whatever_step_was_read_before(rows: Split, device: str) -> None:
    order = SampleOrder(ROWS, BATCH, seed=3)
    batches = batches_of(rows, device)
    # A training measures the first step, then continues where its checkpoint was; for a GPU the next is read ahead.
    for step in (0, 0, 17, 18, 19, 40, 5):
        assert numbers(batches, step) == order.rows_of_step(step).tolist()
    batches.close()


def test_rows_that_are_read_ahead_do_not_change_those_in_use(rows: Split) -> None:
    batches = batches_of(rows, "cuda")
    (first, _), *_ = batches.of_step(0)[0]
    before = first["number"].clone()
    for step in range(1, 30):
        batches.of_step(step)
    assert torch.equal(first["number"], before)
    batches.close()


def test_the_time_that_batches_take_is_counted_once(rows: Split) -> None:
    batches = batches_of(rows, "cpu")
    batches.of_step(4)
    assert batches.seconds_taken() > 0
    assert batches.seconds_taken() == 0
    batches.close()


def test_micro_batches_are_the_batch_in_order_with_its_last_piece_smaller(rows: Split) -> None:
    whole, pieces = batches_of(rows, "cpu"), batches_of(rows, "cpu", micro_batch_size=5)
    made, total = pieces.of_step(7)
    assert [loss_tokens for _, loss_tokens in made] == [5, 5, 2]
    assert total == BATCH
    assert [number for batch, _ in made for number in batch["number"].tolist()] == numbers(whole, 7)
    counted, total = batches_of(rows, "cpu", Numbers(loss_tokens=True), micro_batch_size=5).of_step(7)
    assert [loss_tokens for _, loss_tokens in counted] == [int(batch["number"].sum()) for batch, _ in made]
    assert total == sum(loss_tokens for _, loss_tokens in counted)


def test_validation_reads_every_row_once_and_in_order(rows: Split) -> None:
    read = list(validation_batches(Numbers(), rows, 8, torch.device("cpu")))  # type: ignore[arg-type]
    assert [number for batch, _ in read for number in batch["number"].tolist()] == list(range(ROWS))
    assert [loss_tokens for _, loss_tokens in read] == [8] * 12 + [7]

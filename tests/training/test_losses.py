"""The means that a training tells of its losses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from gpu_pipelines.training.metrics import Losses


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_entries_that_are_told_together_have_the_means_that_each_has_alone() -> None:
    random = torch.Generator().manual_seed(0)
    steps = [(torch.rand((), generator=random) * tokens, tokens) for tokens in (3, 64, 0, 1, 128, 7)]
    together, alone = Losses(torch.device("cpu")), Losses(torch.device("cpu"))
    found = []
    for number, (total, tokens) in enumerate(steps):
        for losses in (together, alone):
            losses.add(total, tokens)
        if number in (1, 2, 5):
            together.end_entry()
            alone.end_entry()
            found += alone.means()
    assert together.means() == found
    totals = [total for total, _ in steps]
    assert found == pytest.approx(
        [(totals[0] + totals[1]).item() / 67, 0.0, torch.stack(totals[3:]).sum().item() / 136]
    )


def test_a_loss_that_is_no_number_is_told_as_that_of_its_entry() -> None:
    losses = Losses(torch.device("cpu"))
    for total in (1.0, float("inf"), float("nan"), 2.0):
        losses.add(torch.tensor(total), 1)
        losses.end_entry()
    first, second, third, fourth = losses.means()
    assert (first, second, fourth) == (1.0, float("inf"), 2.0)
    assert third != third

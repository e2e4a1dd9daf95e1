"""What a training tells of its losses, and of the time that they took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from trainings import entries

from gpu_pipelines.numbers import throughput_told
from gpu_pipelines.training import metrics
from gpu_pipelines.training.metrics import Entry, Losses, MetricsLog, Speed
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.validation import Validation

pytestmark = pytest.mark.usefixtures("group_of_one")


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


@pytest.mark.parametrize(
    ("seconds_a_step", "kept", "shown"),
    [(30.0, 0.03333, "0.0333"), (0.36, 2.778, "2.78"), (0.0101, 99.01, "99"), (0.0001, 10000.0, "10,000")],
)
def test_a_slow_training_has_a_throughput_too(
    monkeypatch: pytest.MonkeyPatch, seconds_a_step: float, kept: float, shown: str
) -> None:
    """It was 0.0 of a large model, by which a trial divides."""
    clock = [100.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: clock[0])
    speed = Speed(1, 1e9, None)
    for _ in range(4):
        speed.step(0.0)
    clock[0] += 4 * seconds_a_step
    rate = speed.take()["samples_per_second"]
    assert rate == pytest.approx(kept, rel=1e-3)
    assert throughput_told(rate) == shown


def test_a_loss_that_is_no_number_is_told_as_that_of_its_entry() -> None:
    losses = Losses(torch.device("cpu"))
    for total in (1.0, float("inf"), float("nan"), 2.0):
        losses.add(torch.tensor(total), 1)
        losses.end_entry()
    first, second, third, fourth = losses.means()
    assert (first, second, fourth) == (1.0, float("inf"), 2.0)
    assert third != third


@pytest.mark.parametrize(
    ("best", "between", "patience", "stops"),
    [(4, 2, 2, 8), (10, 7, 1, 14), (10, 7, 2, 21), (9, 12, 1, 12), (4, 2, 0, None), (None, 2, 1, None)],
)
def test_a_training_whose_loss_has_stalled_stops_at_a_checkpoint(
    best: int | None, between: int, patience: int, stops: int | None
) -> None:
    """The interval may have changed since the best one: between two checkpoints, the last steps would be lost."""
    settings = TrainingSettings(early_stopping_patience=patience)
    anything: Any = None
    validation = Validation(anything, anything, anything, settings, torch.device("cpu"))
    validation.best = None if best is None else (0.5, best)
    begins = 0 if best is None else best + 1
    found = [step for step in range(begins, 40) if validation.has_stalled(step, between)]
    assert next(iter(found), None) == stops


def test_what_is_said_of_fetching_is_said_once_of_entries_that_are_told_together(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, tmp_path / "events", 9, 0, is_rank_0=True)
    streaming = {"fetched_mb_per_second": 2.0, "stalled_seconds": 1.5, "cache_gb": 0.1}
    for steps in ((1, 2, 3), (4,)):
        told = [Entry(step, 0.1, 1.0, 0.1, float(step)) for step in steps]
        log.training(told, {"samples_per_second": 3.0, "memory_gb": 0.1}, streaming)
    log.close()
    assert entries(tmp_path, "samples_per_second") == [3.0] * 4
    assert entries(tmp_path, "stalled_seconds") == [1.5, 1.5], "their sum is the time that was waited"

"""What a study leaves on the disk: its journal, and what it has cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_pipelines.errors import UserError
from gpu_pipelines.training.machine.local_devices import Devices
from gpu_pipelines.tuning.budget import SECONDS_AHEAD, Budget
from gpu_pipelines.tuning.folder import JOURNAL, SPENT
from gpu_pipelines.tuning.halving import Part
from gpu_pipelines.tuning.journal import Journal, Outcome
from gpu_pipelines.tuning.processes import environment_of
from gpu_pipelines.tuning.shares import shares_of


def test_a_journal_says_what_was_done_and_goes_on_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.begin(0, {"learning_rate": 0.1})
    journal.end(Part(0, 0), Outcome(0.5, 2.0))
    journal.end(Part(0, 1), Outcome(None, 1.0, "it diverged"))
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"trial": 1, "para')
    again = Journal(tmp_path)
    assert again.parameters == {0: {"learning_rate": 0.1}}
    assert again.outcomes == {Part(0, 0): Outcome(0.5, 2.0), Part(0, 1): Outcome(None, 1.0, "it diverged")}
    again.begin(1, {"learning_rate": 0.2})
    assert Journal(tmp_path).parameters == {0: {"learning_rate": 0.1}, 1: {"learning_rate": 0.2}}


def test_a_line_that_is_damaged_is_told(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text('{"trial": 0, "parameters": {}}\nnothing\n')
    with pytest.raises(UserError, match="line 2"):
        Journal(tmp_path)


class Clock:
    """A clock that a test moves."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


def test_time_is_written_down_before_it_is_used_and_counts_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("gpu_pipelines.tuning.budget.time", clock)
    budget = Budget(tmp_path, dollars=1.0, dollars_per_hour=36.0)  # a cent a second
    used = 0.0
    while not budget.is_ending:
        budget.look()
        written = json.loads((tmp_path / SPENT).read_text())["seconds"]
        assert budget.seconds <= written <= 100, "what is used was written before, and never more than there is"
        clock.now += 1
        used += 1
    assert 70 <= used <= 80, "a fifth is left for saving"
    assert not budget.is_over
    # It was killed. What it may have used until then counts.
    again = Budget(tmp_path, dollars=1.0, dollars_per_hour=36.0)
    assert used <= again.seconds <= used + SECONDS_AHEAD
    again.close()
    assert Budget(tmp_path, dollars=0.0, dollars_per_hour=36.0).dollars == pytest.approx(again.dollars)
    clock.now += 1_000
    assert again.is_over
    assert not Budget(tmp_path, dollars=0.0, dollars_per_hour=36.0).is_ending


@pytest.mark.parametrize(
    ("devices", "parallel", "processes", "seen"),
    [
        (Devices("cuda", 4), 2, 2, ["a,b", "c,d"]),
        (Devices("cuda", 4), 3, 1, ["a", "b", "c"]),
        (Devices("cuda", 4), 8, 1, ["a", "b", "c", "d", "a", "b", "c", "d"]),
        (Devices("cuda", 4), 1, 4, ["a,b,c,d"]),
        (Devices("cpu", 4), 2, 2, ["cpu:2", "cpu:2"]),
        (Devices("cpu", 2), 4, 1, ["cpu:1"] * 4),
    ],
)
def test_trials_share_the_machine(devices: Devices, parallel: int, processes: int, seen: list[str]) -> None:
    shares = shares_of(devices, parallel, ["a", "b", "c", "d"])
    name = "CUDA_VISIBLE_DEVICES" if devices.kind == "cuda" else "GPU_PIPELINES_ACCELERATOR"
    assert [share.variables[name] for share in shares] == seen
    assert {share.processes for share in shares} == {processes}


def test_what_a_platform_says_for_one_training_is_not_told_to_the_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {
        "AIP_TENSORBOARD_LOG_DIR": "gs://bucket/tensorboard",
        "KUBEFLOW_TRAINER_SERVER_URL": "https://trainer",
        "GPU_PIPELINES_ACCELERATOR": "l4:4",
        "AIP_MODEL_DIR": "gs://bucket/model",
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    (share,) = shares_of(Devices("cuda", 4), 1, ["a", "b", "c", "d"])
    environment = environment_of(share, "study x", tmp_path / "error.json")
    assert not {"AIP_TENSORBOARD_LOG_DIR", "KUBEFLOW_TRAINER_SERVER_URL", "GPU_PIPELINES_ACCELERATOR"} & set(
        environment
    )
    assert environment["AIP_MODEL_DIR"] == "gs://bucket/model"
    assert environment["GPU_PIPELINES_RUN"] == "study x"
    monkeypatch.setenv("GPU_PIPELINES_RUN", "run-1")
    assert environment_of(share, "study x", tmp_path / "error.json")["GPU_PIPELINES_RUN"] == "run-1"

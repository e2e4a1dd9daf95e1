"""Runs of Weights & Biases that are offline, read back from the client's own files."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

import pytest
from followed import MANY_STEPS, killed, require_whole, trained
from wandb.proto.wandb_internal_pb2 import Record

from gpu_pipelines.tracking.tracker import Point, TrackedRun
from gpu_pipelines.tracking.trackers import tracker_for
from gpu_pipelines.tracking.wandb_files import _records, rows_in
from gpu_pipelines.tracking.wandb_tracker import _take


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = defaultdict(list)
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for row in rows_in(file):
            for name in ("loss", "val_loss"):
                if name in row:
                    found[name].append((row["step"], row[name]))
    return found


def begun(folder: Path) -> int:
    """Attempts; their rows are in the files only where the client has a block together, or ends."""
    return len(list(folder.glob("wandb/offline-run-*")))


@pytest.mark.slow
def test_a_training_that_is_killed_has_each_step_once(tmp_path: Path) -> None:
    killed(2, "wandb:team/project", tmp_path / "killed", lambda: begun(tmp_path))
    require_whole(curves(tmp_path), MANY_STEPS)
    assert begun(tmp_path) == 3


@pytest.mark.slow
def test_a_try_that_failed_has_sent_what_the_next_one_does_not_send_again(tmp_path: Path) -> None:
    for _ in range(2):
        tracker = tracker_for("wandb")
        tracker.begin(TrackedRun("key", "name"))
        steps = tracker.last_steps()
        tracker.log_points([Point("loss", steps.get("loss", 0) + 1, 1.0, 0.0)])
        time.sleep(1)  # the client names its files by the second
    tracker.end(True)
    assert curves(tmp_path) == {"loss": [(1, 1.0), (2, 1.0)]}


def test_a_curve_may_begin_with_an_underscore() -> None:
    steps: dict[str, int] = {}
    _take(steps, {"step": 3, "_step": 0, "_timestamp": 1.0, "_runtime": 2.0, "_loss": 1.0})
    assert steps == {"_loss": 3}


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path) -> None:
    killed(20, "wandb", tmp_path / "twenty", lambda: begun(tmp_path))
    require_whole(curves(tmp_path), MANY_STEPS)


def test_configuration_and_figures_are_in_the_files(tmp_path: Path) -> None:
    trained("wandb", tmp_path / "told")
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    assert b"test_accuracy_low" in content
    records = map(Record.FromString, _records(content))
    configuration = {each.key: each.value_json for record in records for each in record.config.update}
    assert configuration["model"] == '"vit-micro"'
    assert configuration["seed"] == "0", "numbers are sorted and drawn as such"


@pytest.mark.slow
def test_rows_that_are_cut_across_blocks_are_read(tmp_path: Path) -> None:
    trained("wandb", tmp_path / "long", steps=700)
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert file.stat().st_size > 2 * 32 * 1024
    require_whole(curves(tmp_path), steps=700)

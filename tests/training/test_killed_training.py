"""A training that is stopped or killed at random moments, and started again each time, ends as one left alone."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
from started_training import TRAIN, run_training, weights_digest
from trainings import entries, names, photos_dataset

from gpu_pipelines.errors import INTERRUPTED
from gpu_pipelines.training.settings import TrainingSettings

# The ordinary suite interrupts runs in tests/pipeline and launchers in test_launch.py.
pytestmark = pytest.mark.slow

SETTINGS = TrainingSettings(model="convnext-micro", max_steps=240, checkpoint_every_steps=80, global_batch_size=16)
LAST = "step-00000240"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photos_dataset(tmp_path_factory.mktemp("photos"), image_size=32)


@pytest.fixture(scope="module")
def left_alone(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("left alone")
    assert run_training(SETTINGS, photos, str(directory)).status == 0
    return directory


def test_sigterm_ends_with_a_checkpoint_from_which_the_same_command_continues(
    photos: Path, left_alone: Path, tmp_path: Path
) -> None:
    began = time.monotonic()
    stopped = run_training(
        SETTINGS, photos, str(tmp_path), stop_when=lambda line: line.startswith("step "), by=signal.SIGTERM
    )
    assert stopped.status == INTERRUPTED, stopped.text
    assert stopped.lines[-1].startswith("interrupted: ")
    assert "run the same command again to continue" in stopped.lines[-1]
    assert "Traceback" not in stopped.text
    assert time.monotonic() - began < 60
    written = names(tmp_path)[-1]
    assert written != LAST
    assert (tmp_path / written / "checkpoint.json").exists()

    continued = run_training(SETTINGS, photos, str(tmp_path))
    assert continued.status == 0
    assert f"continuing from {written}" in continued.text
    assert weights_digest(tmp_path / LAST) == weights_digest(left_alone / LAST)
    assert names(tmp_path) == names(left_alone), "the checkpoint of the interruption is gone once there is a newer one"
    assert entries(tmp_path, "val_loss") == entries(left_alone, "val_loss")


def test_sigkill_loses_at_most_one_interval(photos: Path, left_alone: Path, tmp_path: Path) -> None:
    def second_checkpoint_is_under_way(line: str) -> bool:
        return line.startswith("step 160/240") and "val" in line

    killed = run_training(SETTINGS, photos, str(tmp_path), stop_when=second_checkpoint_is_under_way)
    assert killed.status == -signal.SIGKILL
    continued = run_training(SETTINGS, photos, str(tmp_path))
    assert "continuing from step-00000080" in continued.text or "continuing from step-00000160" in continued.text
    assert weights_digest(tmp_path / LAST) == weights_digest(left_alone / LAST)


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_a_training_stopped_again_and_again_ends_with_the_same_bits(
    photos: Path, tmp_path: Path, by: signal.Signals
) -> None:
    settings = replace(SETTINGS, max_steps=150, checkpoint_every_steps=5)
    assert run_training(settings, photos, str(tmp_path / "left alone")).status == 0
    moments = random.Random(7)
    stops = 0
    while stops < 40:
        lines_left = moments.randint(1, 12)

        def due(line: str) -> bool:
            nonlocal lines_left
            lines_left -= line.startswith("step ")
            return lines_left == 0

        if run_training(settings, photos, str(tmp_path / "stopped"), stop_when=due, by=by).status == 0:
            break
        stops += 1
    assert 2 <= stops < 40, "it was never stopped, or never comes further"
    last = "step-00000150"
    assert weights_digest(tmp_path / "stopped" / last) == weights_digest(tmp_path / "left alone" / last)


def test_the_workers_of_a_killed_launcher_end_too(photos: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-c", TRAIN, json.dumps(asdict(SETTINGS)), str(photos), str(tmp_path)]
    two = {**os.environ, "GPU_PIPELINES_ACCELERATOR": "cpu:2"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=two) as launcher:
        assert launcher.stdout
        assert any(line.startswith("step ") for line in launcher.stdout)
        workers = psutil.Process(launcher.pid).children(recursive=True)
        assert len(workers) >= 2
        launcher.kill()
        _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive

"""A training that is killed at random moments, and started again each time, ends as one that was left alone."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from conftest import write_photos
from test_train_model import weights_digest

from gpu_pipelines.components.data_prep.prepare import prepare_data
from gpu_pipelines.components.data_prep.settings import PrepareSettings

TRAIN = """
import sys
from pathlib import Path
from gpu_pipelines.components.training.settings import TrainingSettings
from gpu_pipelines.components.training.train import train_model
settings = TrainingSettings(max_steps=150, checkpoint_every_steps=5, global_batch_size=16)
train_model(settings, Path(sys.argv[1]), sys.argv[2])
"""


def train(dataset: Path, directory: Path, kill_after_lines: int | None = None) -> bool:
    """Trains in a process of its own; whether it came to its end. It is killed after so many lines of progress."""
    with subprocess.Popen(
        [sys.executable, "-u", "-c", TRAIN, str(dataset), str(directory)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        seen = 0
        for line in process.stdout:
            seen += line.startswith("step ")
            if kill_after_lines is not None and seen > kill_after_lines:
                for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                    each.kill()
                return False
    return process.returncode == 0


@pytest.mark.slow
def test_a_training_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    dataset = tmp_path / "dataset"
    prepare_data(PrepareSettings(source=str(write_photos(tmp_path / "source")), image_size=32), dataset)
    assert train(dataset, tmp_path / "left alone")
    moments = random.Random(7)
    kills = 0
    while not train(dataset, tmp_path / "killed", kill_after_lines=moments.randint(1, 3)):
        kills += 1
        assert kills < 40, "it never comes further"
    assert kills >= 2
    last = "step-00000150"
    assert weights_digest(tmp_path / "killed" / last) == weights_digest(tmp_path / "left alone" / last)

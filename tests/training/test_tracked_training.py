"""Real trainings that are followed: what they come to does not depend on the tracker, and their curves are whole."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from mlflow_server import mlflow_server
from started_training import run_training, weights_digest

from gpu_pipelines.emulator.json_server import free_port
from gpu_pipelines.training.settings import TrainingSettings

#: A line of the log for each step, and more steps than a life of the training has time for.
SETTINGS = TrainingSettings(model="mlp-small", max_steps=100, checkpoint_every_steps=10, global_batch_size=16)
LAST = f"step-{SETTINGS.max_steps:08d}"
ONE = {"GPU_PIPELINES_ACCELERATOR": "cpu:1"}


@pytest.mark.slow
def test_a_tracker_that_is_away_for_the_whole_training_changes_nothing(numbers: Path, tmp_path: Path) -> None:
    alone = run_training(SETTINGS, numbers, str(tmp_path / "alone"), environment=ONE)
    away = {**ONE, "GPU_PIPELINES_TRACKING": f"mlflow:http://127.0.0.1:{free_port()}"}
    tracked = run_training(SETTINGS, numbers, str(tmp_path / "tracked"), environment=away)
    assert (alone.status, tracked.status) == (0, 0), tracked.text
    assert tracked.text.count("mlflow is away") == 1
    assert "warning: mlflow has not got all of this step" in tracked.text
    assert weights_digest(tmp_path / "tracked" / LAST) == weights_digest(tmp_path / "alone" / LAST)


@pytest.mark.slow
def test_twenty_kills_of_a_training_leave_whole_curves_and_the_same_weights(numbers: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, recipe="unhurried:Unhurried", checkpoint_every_steps=5)
    paths = {"PYTHONPATH": str(Path(__file__).parent)}
    uri, generator = str(tmp_path / "killed"), random.Random(0)
    with mlflow_server(tmp_path) as address:
        environment = {**ONE, **paths, "GPU_PIPELINES_TRACKING": f"mlflow:{address}"}
        for _ in range(20):
            ended = run_training(
                settings,
                numbers,
                uri,
                stop_when=lambda line: line.startswith(("step ", "continuing ")),
                seconds_later=generator.random() * 0.3,
                environment=environment,
            )
            assert ended.status == -signal.SIGKILL, ended.text
        assert run_training(settings, numbers, uri, environment=environment).status == 0
        client = MlflowClient(address)
        experiment = client.get_experiment_by_name("gpu-pipelines")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        for name in ("loss", "learning_rate"):
            steps = [point.step for point in client.get_metric_history(run.info.run_id, name)]
            assert sorted(steps) == list(range(1, 101))
        checkpoints = [point.step for point in client.get_metric_history(run.info.run_id, "val_loss")]
        assert sorted(checkpoints) == list(range(5, 101, 5))
    assert run_training(settings, numbers, str(tmp_path / "alone"), environment={**ONE, **paths}).status == 0
    assert weights_digest(tmp_path / "killed" / LAST) == weights_digest(tmp_path / "alone" / LAST)

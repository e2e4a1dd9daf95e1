"""A pipeline that is tracked: its steps are one run of the tracker, and another tracker makes nothing run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import gpu_pipelines, newest_run, run_pipeline
from mlflow.tracking import MlflowClient

GIVEN = {
    "task": "regression",
    "source": "numbers.csv",
    "max_steps": 20,
    "checkpoint_every_steps": 10,
    "model_name": "numbers",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the pipeline ran once, with the file of MLflow beside the runs."""
    folder = tmp_path_factory.mktemp("tracked")
    rows = [f"{a},{b},{3 * a - b}" for a in range(15) for b in range(12)]
    (folder / "numbers.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    done = run_pipeline(folder, "--accelerator", "cpu:1", tracking="mlflow", **GIVEN)
    assert done.status == 0, done.out + done.err
    # What is offered next can be run: the file is not where another machine is.
    assert "-p max_steps=20" in done.out
    assert "tracking=mlflow" not in done.out
    return folder


def runs_of(folder: Path) -> list[Any]:
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("gpu-pipelines")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


@pytest.mark.slow
def test_one_run_has_what_all_steps_know(folder: Path) -> None:
    (run,) = runs_of(folder)
    assert run.info.run_name == newest_run(folder)["directory"].name
    assert run.info.status == "FINISHED"
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    steps = [point.step for point in client.get_metric_history(run.info.run_id, "loss")]
    assert steps == list(range(1, 21))
    assert [point.step for point in client.get_metric_history(run.info.run_id, "val_loss")] == [10, 20]
    params, metrics = run.data.params, run.data.metrics
    assert params["optimizer"] == "adamw"
    assert params["source"] == "numbers.csv"
    assert len(params["dataset_fingerprint"]) == 64
    assert params["accelerator"] == "cpu:1"
    assert (params["registered_model"], params["registered_version"]) == ("numbers", "1")
    assert metrics["test_rmse_low"] <= metrics["test_rmse"] <= metrics["test_rmse_high"]
    kept = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert kept == {"training_report.html", "evaluation_report.html"}


@pytest.mark.slow
def test_another_tracker_trains_nothing_again_and_gets_what_the_steps_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    done = run_pipeline(folder, "--cache", "--accelerator", "cpu:1", tracking="wandb:team/project", **GIVEN)
    assert done.status == 0, done.out + done.err
    assert "train-model: reused" in done.out
    from gpu_pipelines.tracking.wandb_files import rows_in

    files = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))
    rows = [row for file in files for row in rows_in(file)]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 21))
    assert [row["step"] for row in rows if "checkpoint_val_rmse" in row] == [10, 20]
    assert b"test_rmse_low" in b"".join(file.read_bytes() for file in files)
    assert len(runs_of(folder)) == 1


def test_what_is_wrong_with_it_is_said_before_anything_starts(tmp_path: Path) -> None:
    refused = gpu_pipelines("run", "train_evaluate_upload", "-p", "tracking=mlflow:there", cwd=tmp_path)
    assert refused.status == 2
    assert "Give mlflow:https://HOST" in refused.err
    assert not (tmp_path / "runs").exists()

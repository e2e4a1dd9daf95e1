"""Real studies of small trainings on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed import killed_again_and_again
from started_training import weights_digest
from trainings import train_here

import gpu_pipelines
from gpu_pipelines.artifacts.checkpoint import complete_checkpoints
from gpu_pipelines.errors import UserError
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.journal import Journal
from gpu_pipelines.tuning.search import Search

SPACE = {
    "learning_rate": {"type": "float", "low": 0.001, "high": 0.1, "log": True},
    "optimizer": {"type": "categorical", "choices": ["adamw", "sgd"]},
    "momentum": {"type": "float", "low": 0.5, "high": 0.95, "when": {"optimizer": "sgd"}},
}
FIXED: dict[str, Any] = {"model": "mlp-small", "max_steps": 18, "global_batch_size": 8}


@pytest.mark.slow
def test_a_study_of_real_trainings(numbers: Path, tmp_path: Path) -> None:
    dataset, folder = numbers, tmp_path / "study"
    result = gpu_pipelines.tune(dataset, folder, SPACE, trials=2, parallel=2, **FIXED)
    assert [trial.step for trial in sorted(result.trials, key=lambda each: each.step)] == [12, 18]
    assert result.ended_by == "trials"
    best = result.trials[result.best]
    assert best.is_whole
    assert best.parameters == result.best_parameters
    assert [step for step, _ in best.curve] == list(range(3, 19, 3))
    assert result.loss == min(loss for _, loss in best.curve)
    # It was trained in two parts, and has the weights of a training in one.
    values = {**FIXED, **result.best_parameters}
    assert train_here(TrainingSettings(**values, checkpoint_every_steps=3), dataset, str(tmp_path / "whole"))
    last = complete_checkpoints(result.checkpoints)[-1]
    assert weights_digest(last.path) == weights_digest(tmp_path / "whole" / last.name)
    report = result.report.read_text()
    assert "Trials" in report
    assert f"Trial {result.best} has the lowest loss" in report
    written = (folder / "journal.jsonl").read_text()
    began = time.monotonic()
    again = gpu_pipelines.tune(dataset, folder, SPACE, trials=2, parallel=2, **FIXED)
    assert time.monotonic() - began < 4, "nothing is trained again"
    assert (again.best_parameters, (folder / "journal.jsonl").read_text()) == (result.best_parameters, written)
    with pytest.raises(UserError, match="another study: model is 'linear', there it was 'mlp-small'"):
        gpu_pipelines.tune(dataset, folder, SPACE, trials=2, **{**FIXED, "model": "linear"})


@pytest.mark.slow
def test_a_study_with_another_seed_is_told_of_its_seed(numbers: Path, tmp_path: Path) -> None:
    fixed = {**FIXED, "max_steps": 2}
    space = {"learning_rate": {"type": "float", "low": 0.001, "high": 0.1}}
    gpu_pipelines.tune(numbers, tmp_path / "study", space, trials=1, **fixed)
    with pytest.raises(UserError, match=r"another study: seed of the study is 7, there it was 0\."):
        gpu_pipelines.tune(numbers, tmp_path / "study", space, trials=1, seed=7, **fixed)


def test_all_that_is_wrong_is_told_before_anything_is_trained(numbers: Path, tmp_path: Path) -> None:
    dataset, folder = numbers, tmp_path / "study"
    with pytest.raises(UserError) as raised:
        gpu_pipelines.tune(
            dataset,
            folder,
            SPACE,
            trials=0,
            sampler="tpee",
            budget=5.0,
            longer=0.5,
            optimizer="sgd",
            lerning_rate=1.0,
            max_steps="many",
        )
    told = str(raised.value)
    for wrong in (
        "trials is 0",
        "'tpe'",
        "this machine costs nothing",
        "longer is 0.5",
        "optimizer is searched for, and given as well",
        "Did you mean 'learning_rate'?",
        "max_steps takes a whole number; got 'many'",
    ):
        assert wrong in told, wrong
    with pytest.raises(UserError, match=r"There is no model 'mlp-smal'.*'mlp-small'"):
        gpu_pipelines.tune(dataset, folder, SPACE, model="mlp-smal")
    unfit: Any = {"trials": "3", "seed": "a", "sampler": None, "first_rung": "half", "longer": None, "parallel": True}
    with pytest.raises(UserError) as raised:
        gpu_pipelines.tune(dataset, folder, SPACE, **unfit)
    for name, value in unfit.items():
        assert f"{name} takes " in str(raised.value), name
        assert f"got {str(value)!r}" in str(raised.value), name
    assert not folder.exists()


def test_numbers_and_arrays_of_numpy_are_values(numbers: Path, tmp_path: Path) -> None:
    space = {
        "learning_rate": {"type": "float", "low": np.float64(0.001), "high": np.float32(0.1), "log": np.True_},
        "optimizer": {"type": "categorical", "choices": np.array(["adamw", "sgd"])},
    }
    given: Any = {name: np.int64(2) for name in ("trials", "parallel", "seed", "reduction", "max_steps", "longer")}
    with pytest.raises(UserError) as raised:
        gpu_pipelines.tune(
            numbers, tmp_path, space, model=tmp_path / "none", first_rung=np.float32(0.5), fp8=np.False_, **given
        )
    assert str(raised.value).startswith(f"model is {tmp_path}/none, and there is no such directory.")


def test_without_a_model_that_of_the_task_is_tried(
    numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Search] = []
    monkeypatch.setattr("gpu_pipelines.tuning.tune.search", lambda search, *_, **others: asked.append(search))
    gpu_pipelines.tune(numbers, tmp_path, SPACE)
    gpu_pipelines.tune(numbers, tmp_path, SPACE, model="linear")
    assert [each.base.model for each in asked] == ["mlp-small", "linear"]


PROGRAM = """
import sys, json, gpu_pipelines
from gpu_pipelines.errors import user_errors_end_the_step
dataset, folder, space, others = json.loads(sys.argv[1])
with user_errors_end_the_step():
    gpu_pipelines.tune(dataset, folder, space, **others)
"""


def tuning(dataset: Path, folder: Path, others: dict[str, Any]) -> subprocess.Popen[str]:
    job = json.dumps([str(dataset), str(folder), SPACE, others])
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, job], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.slow
def test_a_study_that_is_killed_ten_times_is_the_one_that_was_not(numbers: Path, tmp_path: Path) -> None:
    others = {**FIXED, "trials": 4, "parallel": 2}
    began = time.monotonic()
    whole = tuning(numbers, tmp_path / "whole", others)
    output, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, output
    killed = killed_again_and_again(
        lambda folder: tuning(numbers, folder, others), tmp_path, time.monotonic() - began, signal.SIGINT, 3, 10
    )
    one, other = Journal(tmp_path / "whole"), Journal(killed)
    assert other.parameters == one.parameters
    assert {part: outcome.loss for part, outcome in other.outcomes.items()} == {
        part: outcome.loss for part, outcome in one.outcomes.items()
    }
    lines = [json.loads(line) for line in (killed / "journal.jsonl").read_text().splitlines()]
    assert len({(line["trial"], line.get("rung")) for line in lines}) == len(lines), "nothing twice"


@pytest.mark.slow
def test_the_budget_ends_a_study(numbers: Path, tmp_path: Path) -> None:
    dataset, folder = numbers, tmp_path / "study"
    asked: dict[str, Any] = {**FIXED, "reduction": 1, "dollars_per_hour": 36.0}
    gpu_pipelines.tune(dataset, folder, SPACE, trials=1, **asked)
    spent = json.loads((folder / "spent.json").read_text())["seconds"]
    began = time.monotonic()
    budget = (spent + 25) / 100
    result = gpu_pipelines.tune(dataset, folder, SPACE, trials=100, budget=budget, **asked)
    assert 15 < time.monotonic() - began <= 25
    assert result.ended_by == "budget"
    assert 0 < result.dollars <= budget
    assert json.loads((folder / "spent.json").read_text())["seconds"] <= spent + 25
    assert len(result.trials) < 100
    assert result.trials[result.best].is_whole
    assert "The budget was spent" in result.report.read_text()

"""Hyperparameters of old jobs as a search of this project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from command_line import command
from old_jobs import custom, migrated

from gpu_pipelines.tuning.space import read_space

RATE = {
    "parameterName": "learning_rate",
    "type": "DOUBLE",
    "minValue": 0.0001,
    "maxValue": 0.1,
    "scaleType": "UNIT_LOG_SCALE",
}
WARMUP = {"parameterName": "warmup_steps", "type": "INTEGER", "minValue": "0", "maxValue": "60"}
BATCH = {"parameterName": "global_batch_size", "type": "DISCRETE", "discreteValues": [16, 32, 64]}
KIND = {"parameterName": "optimizer", "type": "CATEGORICAL", "categoricalValues": ["sgd", "adamw"]}
LAYERS = {"parameterName": "layers", "type": "INTEGER", "minValue": "1", "maxValue": "8"}
SPACE = {
    "learning_rate": {"type": "float", "low": 0.0001, "high": 0.1, "log": True},
    "warmup_steps": {"type": "int", "low": 0, "high": 60},
    "global_batch_size": {"type": "categorical", "choices": [16, 32, 64]},
    "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
}


def tuned(*parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return custom(hyperparameters={"params": list(parameters), **more})


def test_parameters_of_a_training_are_a_search_space() -> None:
    found = migrated(tuned(RATE, WARMUP, BATCH, KIND, LAYERS, maxTrials=12, maxParallelTrials=3)).study
    assert found is not None
    assert found.space == SPACE
    assert list(found.left_out) == ["layers"]
    assert "no parameter 'layers' of train_model" in found.left_out["layers"]
    said = found.command("space.yaml")
    assert said.startswith("gpu-pipelines run tune_train_evaluate_upload --space space.yaml --trials 12 --parallel 3")
    assert "--target vertex --accelerator" in said
    assert "--region us-central1" in said
    assert said.endswith("-p reduction=1"), "no trial ended early in the old job"
    early = migrated(tuned(RATE, enableTrialEarlyStopping=True, algorithm="RANDOM_SEARCH")).study
    assert early is not None
    assert early.command("s").endswith("-p sampler=random")


def test_values_of_one_and_of_another_type_are_taken_or_left_out() -> None:
    one = {**RATE, "minValue": 0.01, "maxValue": 0.01}
    found = migrated(tuned(one, {**WARMUP, "type": "DOUBLE"})).study
    assert found is not None
    assert found.space == {"learning_rate": {"type": "categorical", "choices": [0.01]}}
    assert "warmup_steps takes a whole number" in found.left_out["warmup_steps"]
    assert migrated(tuned(LAYERS)).study is None
    assert migrated(custom()).study is None


def test_what_would_refuse_the_command_is_left_out_with_what_was_probably_meant() -> None:
    adam = {**KIND, "categoricalValues": ["adam", "sgd"]}
    found = migrated(tuned(RATE, adam, {**BATCH, "parameterName": "batch_size"})).study
    assert found is not None
    assert list(found.space) == ["learning_rate"]
    assert found.left_out["optimizer"] == "optimizer is 'adam'. Did you mean 'adamw'?"
    assert found.left_out["batch_size"].endswith("Did you mean 'global_batch_size'?"), "the micro-batch shapes nothing"


def test_the_command_writes_the_space_beside_the_config(tmp_path: Path) -> None:
    old = {"jobId": "search", "trainingInput": tuned(RATE, KIND, LAYERS, maxTrials=4)}
    old = {"jobId": "search", **tuned(RATE, KIND, LAYERS, maxTrials=4)} if "trainingInput" in tuned(RATE) else old
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(old))
    done = command("migrate", "old.yaml", "-o", "new.yaml", cwd=tmp_path)
    assert done.status == 0, done.err
    space = tmp_path / "new-space.yaml"
    assert read_space(space).names == ["learning_rate", "optimizer"]
    assert "# Left out: layers: There is no parameter 'layers'" in space.read_text()
    assert "gpu-pipelines run tune_train_evaluate_upload --space new-space.yaml" in done.err
    printed = command("migrate", "old.yaml", "--json", cwd=tmp_path)
    study = json.loads(printed.out)["study"]
    assert study["space"] == yaml.safe_load(space.read_text())
    shown = command("migrate", "old.yaml", cwd=tmp_path)
    assert "learning_rate:" in shown.err
    assert "learning_rate:" not in shown.out, "what is printed is the config alone"

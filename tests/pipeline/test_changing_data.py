"""Compiled files of the whole pipeline, run by KFP's own runner over data that changes. tests/vertex has Vertex AI's.

What KFP's API server keeps a result by (backend/src/v2/cacheutils/cache.go of 2.17) are the names of a task's input
artifacts, the values of its parameters, its command, its image and its claims. The key of KFP's local runner has the
same parts and more, so that the two agree on a task whose inputs are parameters alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import write_photos
from kfp import components

from gpu_pipelines.accelerators import plan
from gpu_pipelines.dag import load_pipeline
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.step_environment import INPUT_STATE, REHEARSE
from gpu_pipelines.targets.compiled import compiled, documents_of
from gpu_pipelines.targets.kubeflow.target import MOUNT_PATH, KubeflowTarget
from gpu_pipelines.targets.local.target import LocalTarget, RunPlace, compiled_for_here, run_locally

PIPELINE, TASK = "train_evaluate_upload", "image_classification"


class Unheard:
    """An observer of a run that takes no notice."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **named: None


def for_here(claim: Path) -> str:
    return compiled_for_here(PIPELINE, plan("cpu:1"), task=TASK)


def for_kubeflow(claim: Path) -> str:
    """The file with its claim mounted where this machine lets one write."""
    text = KubeflowTarget(ProjectSettings(image="eu.example/python-steps:1")).text_of(PIPELINE, plan("l4:1"), task=TASK)
    return text.replace(MOUNT_PATH, str(claim))


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [for_here, pytest.param(for_kubeflow, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:Task:UserWarning", "ignore:You may be attemping:RuntimeWarning")
def test_data_that_has_changed_is_prepared_again_and_other_data_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: Callable[[Path], str]
) -> None:
    photos = write_photos(tmp_path / "photos", per_class=12)
    text = compiled(tmp_path / "claim")
    preparation = documents_of(text)[0]["root"]["dag"]["tasks"]["prepare-data"]
    assert "artifacts" not in preparation["inputs"], "of those KFP's API server knows the names alone"
    # What comes after the preparation ends at once: no training is rehearsed on a GPU.
    monkeypatch.setenv(REHEARSE, "l4:1")
    given = {"source": str(photos), "registry": str(tmp_path / "registry"), "image_size": 8}

    def run(number: int) -> dict[str, str]:
        pipeline, folder = components.load_component_from_text(text), tmp_path / f"run-{number}"
        ended = run_locally(pipeline, given, RunPlace(folder, tmp_path / "cache", reuse=True), Unheard())
        return {step.name: step.status for step in ended.steps}

    first, unchanged = run(0), run(1)
    more = write_photos(tmp_path / "more", per_class=3, seed=1)
    for path in list(more.glob("*/*")):
        path.rename(photos / path.parent.name / f"more-{path.name}")
    changed = run(2)
    assert first == {"check-request": "succeeded", "prepare-data": "succeeded", "train-model": "failed"}
    assert unchanged == {**first, "prepare-data": "reused"}
    assert changed == first
    assert rows_read(tmp_path) == [24, 30]


def rows_read(folder: Path) -> list[Any]:
    """How many rows each preparation has read, in the order of the runs."""
    found = sorted(folder.glob("run-*/artifacts/*/prepare-data/dataset/dataset.json"))
    return [json.loads(path.read_text())["rows_read"] for path in found]


def test_what_a_step_reads_besides_its_inputs_is_part_of_its_key() -> None:
    states = {"prepare-data": "1", "train-model": "2", "evaluate-checkpoints": "3"}
    text = compiled(load_pipeline(PIPELINE).build(LocalTarget(states), None))
    executors = documents_of(text)[0]["deploymentSpec"]["executors"]
    found = {
        name.removeprefix("exec-"): {each["name"]: each["value"] for each in executor["container"].get("env", [])}
        for name, executor in executors.items()
    }
    assert {name: variables[INPUT_STATE] for name, variables in found.items() if INPUT_STATE in variables} == states

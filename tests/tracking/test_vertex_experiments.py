"""Runs of Vertex AI Experiments in the emulator, and read by the SDK."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from conftest import set_variables
from followed import MANY_STEPS, killed, require_whole
from google.cloud import aiplatform_v1 as api

from gpu_pipelines.tracking.facts import Facts
from gpu_pipelines.tracking.sender import Sender
from gpu_pipelines.tracking.tracker import Point, TrackedRun
from gpu_pipelines.tracking.vertex_tracker import VertexTracker

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_pipelines.emulator.vertex_api import VertexApi


@pytest.fixture(autouse=True)
def variables(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, vertex_api.environment())


def curves(vertex_api: VertexApi) -> dict[str, list[tuple[int, float]]]:
    """The points of each curve, by its name, in the order in which they came."""
    held = vertex_api.state.tensorboards.time_series
    return {
        series.display_name: [(point.step, point.scalar.value) for point in held.points_of(name)]
        for name, series in list(held.series.held.items())
    }


def losses(vertex_api: VertexApi) -> int:
    return len(curves(vertex_api).get("loss", []))


def context_of(vertex_api: VertexApi, schema: str) -> Any:
    (found,) = [each for each in vertex_api.state.metadata.contexts.held.values() if each.schema_title == schema]
    return found


@pytest.mark.slow
def test_a_training_that_is_killed_has_each_step_once(vertex_api: VertexApi, tmp_path: Path) -> None:
    killed(2, "vertex:digits", tmp_path / "run-1", lambda: losses(vertex_api))
    require_whole(curves(vertex_api), MANY_STEPS)
    run = context_of(vertex_api, "system.ExperimentRun")
    assert dict(run.metadata["_params"]) == {"model": "vit-micro", "seed": 0}
    assert dict(run.metadata["_metrics"]) == {"test_accuracy": 0.75, "test_accuracy_low": 0.5}
    assert run.metadata["_state"] == "COMPLETE"
    experiment = context_of(vertex_api, "system.Experiment")
    assert experiment.display_name == "digits"
    assert run.parent_contexts == [experiment.name]


@pytest.mark.slow
def test_twenty_kills(vertex_api: VertexApi, tmp_path: Path) -> None:
    killed(20, "vertex", tmp_path / "twenty", lambda: losses(vertex_api))
    require_whole(curves(vertex_api), MANY_STEPS)


@pytest.mark.slow
def test_the_sdk_finds_run_and_tensorboard(vertex_api: VertexApi) -> None:
    tracker = VertexTracker("digits")
    tracker.begin(TrackedRun("/run", "Run_1"))
    tracker.log_parameters({"seed": "3"})
    tracker.log_points([Point("loss", step, 1 / step, 1e9 + step) for step in (1, 2, 3)])
    tracker.end(succeeded=False)
    # The SDK speaks gRPC to the address of Google, which the emulator's variables lead to itself.
    read = """
from google.cloud import aiplatform
aiplatform.init(project="example-project", location="us-central1")
(run,) = aiplatform.ExperimentRun.list(experiment="digits")
print(run.name, run.get_params(), run.state.name, run._backing_tensorboard_run.resource.resource_name.split("/", 4)[4])
print(run.get_time_series_data_frame()[["step", "loss"]].to_json(orient="values"))
"""
    said = vertex_api.answer_to([sys.executable, "-c", read])
    assert "{'seed': 3.0}" in said
    assert "FAILED" in said
    assert "[[1,1.0],[2,0.5],[3,0.3333333333]]" in said
    assert said.split()[0].startswith("run-1-")
    assert "experiments/digits/runs/run-1-" in said


def test_dataset_and_version_are_what_the_run_has_read_and_made(vertex_api: VertexApi) -> None:
    sender = Sender("vertex", TrackedRun("gs://bucket/run", "run"))
    told = {
        "dataset_fingerprint": "a" * 64,
        "source": "gs://bucket/data",
        "best_checkpoint": "step-00000080",
        "registered_place": "projects/1/locations/l/models/2",
        "registered_model": "digits",
        "registered_version": "3",
    }
    for _ in range(2):  # each step tells what it knows
        sender.add(Facts(told), {})
        sender.end(succeeded=True)
    metadata = vertex_api.state.metadata
    (execution,) = metadata.executions.held
    graph = metadata.execution_graph(api.QueryExecutionInputsAndOutputsRequest(execution=execution))
    by_schema = {each.schema_title: each for each in graph.artifacts}
    assert by_schema["system.Dataset"].uri == "gs://bucket/data"
    assert by_schema["system.Model"].metadata["checkpoint"] == "step-00000080"
    kinds = sorted(event.type_.name for event in graph.events)
    assert kinds == ["INPUT", "OUTPUT"]
    assert by_schema["system.Model"].metadata["version"] == "3"

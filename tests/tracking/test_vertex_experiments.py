"""Runs of Vertex AI Experiments against the emulator, whose TensorBoards get time series here, and read by the SDK."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from conftest import set_variables
from followed import MANY_STEPS, killed, require_whole
from google.cloud import aiplatform_v1 as api

from gpu_pipelines.emulator.transcoding import method
from gpu_pipelines.tracking.facts import Facts
from gpu_pipelines.tracking.sender import Sender
from gpu_pipelines.tracking.tracker import TrackedRun
from gpu_pipelines.tracking.vertex_tracker import VertexTracker

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_pipelines.emulator.vertex_api import VertexApi


class TimeSeries:
    """Time series of TensorBoards, with the service's own messages.

    Attributes:
        points: of each series, by the name that is shown, in the order in which they came.
    """

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}
        self.points: dict[str, list[tuple[int, float]]] = defaultdict(list)

    def create(self, request: Any) -> Any:
        """CreateTensorboardTimeSeries."""
        made = api.TensorboardTimeSeries(request.tensorboard_time_series)
        made.name = f"{request.parent}/timeSeries/{len(self.held) + 1}"
        self.held[made.name] = made
        return made

    def list(self, request: Any) -> Any:
        """ListTensorboardTimeSeries, all in a page."""
        found = [each for name, each in self.held.items() if name.startswith(f"{request.parent}/")]
        return api.ListTensorboardTimeSeriesResponse(tensorboard_time_series=found)

    def write(self, request: Any) -> Any:
        """WriteTensorboardRunData."""
        for data in request.time_series_data:
            series = self.held[f"{request.tensorboard_run}/timeSeries/{data.tensorboard_time_series_id}"]
            for point in data.values:
                self.points[series.display_name].append((point.step, point.scalar.value))
                series.metadata.max_step = max(series.metadata.max_step, point.step)
                series.metadata.max_wall_time = point.wall_time
        return api.WriteTensorboardRunDataResponse()


@pytest.fixture
def series(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch) -> TimeSeries:
    held = TimeSeries()
    handlers = {
        "CreateTensorboardTimeSeries": held.create,
        "ListTensorboardTimeSeries": held.list,
        "WriteTensorboardRunData": held.write,
    }
    for name, handle in handlers.items():
        vertex_api.state.handlers[name] = (method("TensorboardService", name), handle)
    set_variables(monkeypatch, vertex_api.environment())
    return held


def context_of(vertex_api: VertexApi, schema: str) -> Any:
    (found,) = [each for each in vertex_api.state.metadata.contexts.held.values() if each.schema_title == schema]
    return found


def test_a_training_that_is_killed_has_each_step_once(
    vertex_api: VertexApi, series: TimeSeries, tmp_path: Path
) -> None:
    killed(2, "vertex:digits", tmp_path / "run-1", lambda: len(series.points["loss"]))
    require_whole(series.points, MANY_STEPS)
    run = context_of(vertex_api, "system.ExperimentRun")
    assert dict(run.metadata["_params"]) == {"model": "vit-micro", "seed": "0"}
    assert dict(run.metadata["_metrics"]) == {"test_accuracy": 0.75, "test_accuracy_low": 0.5}
    assert run.metadata["_state"] == "COMPLETE"
    experiment = context_of(vertex_api, "system.Experiment")
    assert experiment.display_name == "digits"
    assert run.parent_contexts == [experiment.name]


@pytest.mark.slow
def test_twenty_kills(vertex_api: VertexApi, series: TimeSeries, tmp_path: Path) -> None:
    killed(20, "vertex", tmp_path / "twenty", lambda: len(series.points["loss"]))
    require_whole(series.points, MANY_STEPS)


@pytest.mark.slow
def test_the_sdk_finds_run_and_tensorboard(vertex_api: VertexApi, series: TimeSeries) -> None:
    tracker = VertexTracker("digits")
    tracker.begin(TrackedRun("/run", "Run_1"))
    tracker.log_parameters({"seed": "3"})
    tracker.end(succeeded=False)
    # The SDK speaks gRPC to the address of Google, which the emulator's variables lead to itself.
    read = """
from google.cloud import aiplatform
aiplatform.init(project="example-project", location="us-central1")
(run,) = aiplatform.ExperimentRun.list(experiment="digits")
print(run.name, run.get_params(), run.state.name, run._backing_tensorboard_run.resource.resource_name.split("/", 4)[4])
"""
    said = vertex_api.answer_to([sys.executable, "-c", read])
    assert "{'seed': '3'}" in said
    assert "FAILED" in said
    assert said.split()[0].startswith("run-1-")
    assert "experiments/digits/runs/run-1-" in said


def test_dataset_and_version_are_what_the_run_has_read_and_made(vertex_api: VertexApi, series: TimeSeries) -> None:
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

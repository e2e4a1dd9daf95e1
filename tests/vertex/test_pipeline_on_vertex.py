"""A compiled file from its submission to the model in the registry, run as Vertex AI Pipelines runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import write_photos

if TYPE_CHECKING:
    from vertex_api.server import VertexApi

COMPILED = Path(__file__).parents[2] / "compiled" / "train_evaluate_upload" / "vertex" / "l4-1.yaml"
Run = Callable[..., Any]


@pytest.fixture
def run(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Submits the file with the SDK and runs it; gives the pipeline job as the service has it."""
    for name, value in vertex_api.environment().items():
        monkeypatch.setenv(name, value)
    from vertex_api.pipeline_backend import PipelineBackend

    from gpu_pipelines.project_settings import ProjectSettings
    from gpu_pipelines.targets.vertex.connection import connect

    sdk = connect(ProjectSettings("example-project", "us-central1", "gs://example-bucket/root"))

    def submit(**parameters: Any) -> Any:
        job = sdk.PipelineJob("train", str(COMPILED), parameter_values=parameters, job_id="train-1")
        job.submit()
        PipelineBackend(vertex_api, rehearse="cpu:1").run(job.resource_name)
        return vertex_api.state.pipeline_jobs.job(job.resource_name)

    return submit


@pytest.mark.slow
def test_a_compiled_file_runs_from_data_to_the_model_registry(vertex_api: VertexApi, run: Run, tmp_path: Path) -> None:
    job = run(
        source=str(write_photos(tmp_path / "photos")),
        image_size=16,
        max_steps=6,
        checkpoint_every_steps=3,
        global_batch_size=16,
        model_name="photos",
        gates=["accuracy>=0"],
    )
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", "\n".join(vertex_api.state.logs.messages()[-60:])
    assert len(vertex_api.state.custom_jobs.jobs) == 2
    ((version,),) = vertex_api.state.models.versions.values()
    assert version.display_name == "photos"
    assert version.artifact_uri.startswith("gs://example-bucket/models/photos/")
    assert {"champion", "challenger"} <= set(version.version_aliases)


@pytest.mark.slow
def test_a_step_that_fails_fails_the_run_and_its_log_says_why(vertex_api: VertexApi, run: Run) -> None:
    job = run(source="/nowhere")
    assert job.state.name == "PIPELINE_STATE_FAILED"
    assert "The failed tasks are: [prepare-data]." in job.error.message
    states = {task.task_name: task.state.name for task in job.job_detail.task_details}
    assert (states["prepare-data"], states["train-model"]) == ("FAILED", "PENDING")
    assert any(line.startswith("error: ") and "/nowhere" in line for line in vertex_api.state.logs.messages())

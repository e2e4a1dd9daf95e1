"""Compiled files from their submission to the model in the registry, run as Vertex AI Pipelines runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import set_variables, write_photos
from vertex_commands import connected_sdk

from gpu_pipelines.artifacts.remote_files import RemoteFolder

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

COMPILED = Path(__file__).parents[2] / "compiled"
KEY = "projects/example-project/locations/us-central1/keyRings/r/cryptoKeys/k"
OF_THE_JOB = {"encryption_spec_key_name": KEY, "failure_policy": "fast"}
FEW_STEPS = {"image_size": 16, "global_batch_size": 16, "advanced": {"max_steps": 6, "checkpoint_every_steps": 3}}
TASK = {"train_evaluate_upload": "image_classification"}
Run = Callable[..., Any]


@pytest.fixture
def run(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Submits the file of a pipeline with the SDK and runs it; gives the pipeline job as the service has it."""
    set_variables(monkeypatch, vertex_api.environment())
    from gpu_pipelines.emulator.running.pipelines import PipelineBackend

    sdk = connected_sdk(vertex_api)

    backend = PipelineBackend(vertex_api, rehearse="cpu:1")
    runs = count(1)

    def submit(pipeline: str = "train_evaluate_upload", **parameters: Any) -> Any:
        file = COMPILED / pipeline / "vertex" / TASK.get(pipeline, "") / "l4-1.yaml"
        given = {"steps_image": "eu.example/steps:1", **parameters}
        job = sdk.PipelineJob("train", str(file), parameter_values=given, job_id=f"train-{next(runs)}", **OF_THE_JOB)
        job.submit()
        backend.run(job.resource_name)
        return vertex_api.state.pipeline_jobs.one(job.resource_name), backend.mails

    return submit


@pytest.mark.slow
def test_a_compiled_file_runs_from_data_to_the_model_registry(vertex_api: VertexApi, run: Run, tmp_path: Path) -> None:
    photos = str(write_photos(tmp_path / "photos"))
    job, _ = run(source=photos, **FEW_STEPS, model_name="photos", gates=["accuracy>=0"])
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", "\n".join(vertex_api.state.logs.messages()[-60:])
    assert len(vertex_api.state.custom_jobs.jobs) == 2
    assert {made.encryption_spec.kms_key_name for made in vertex_api.state.custom_jobs.jobs.values()} == {KEY}
    ((version,),) = vertex_api.state.models.versions.values()
    assert version.display_name == "photos"
    assert version.encryption_spec.kms_key_name == KEY
    assert version.artifact_uri.startswith("gs://example-bucket/models/photos/")
    assert {"champion", "challenger"} <= set(version.version_aliases)
    assert version.pipeline_job == "projects/example-project/locations/us-central1/pipelineJobs/train-1"


@pytest.mark.slow
def test_retraining_on_data_that_grows_ends_with_two_versions(vertex_api: VertexApi, run: Run, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos")
    given = {
        **FEW_STEPS,
        "source": str(photos),
        "gates": ["better_than_champion in log_loss"],
        "notify": ["team@example.com"],
    }
    registry = vertex_api.state.models
    for grows, versions in ((False, 1), (False, 1), (True, 2)):
        if grows:
            more = write_photos(tmp_path / "more", seed=1)
            for path in more.glob("*/*"):
                path.rename(photos / path.parent.name / f"more-{path.name}")
        job, mails = run("scheduled_retraining", **given, start_from_champion=grows)
        assert job.state.name == "PIPELINE_STATE_SUCCEEDED", "\n".join(vertex_api.state.logs.messages()[-60:])
        ((*_, newest),) = (held := registry.versions.values())
        assert [len(each) for each in held] == [versions]
    first = next(iter(held))[0]
    assert [set(version.version_aliases) for version in (first, newest)] == [
        set(),
        {"default", "challenger", "champion"},
    ]
    assert mails == [(["team@example.com"], "SUCCEEDED")] * 3
    assert any(line.startswith("nothing new: ") for line in vertex_api.state.logs.messages())
    assert [len(found) for found in registry.evaluations.values()] == [1, 1]
    evaluation = registry.evaluations[f"{newest.name}@2"][0]
    assert evaluation.metrics["confidenceMetrics"][0]["recall"] >= 0
    assert [spec["displayName"] for spec in evaluation.metrics["confusionMatrix"]["annotationSpecs"]] == ["blue", "red"]
    assert evaluation.metadata["pipeline_job_id"] == "train-3"
    trained_from = json.loads(RemoteFolder(newest.artifact_uri).read("evaluation.json"))["configuration"]["settings"]
    assert trained_from["model"] == first.artifact_uri
    states = {
        task.task_name: task.state.name
        for task in list(vertex_api.state.pipeline_jobs.jobs.values())[1].job_detail.task_details
    }
    assert (states["check-for-new-data"], states["condition-2"]) == ("SUCCEEDED", "NOT_TRIGGERED")
    assert states["train-model"] == "PENDING"


@pytest.mark.slow
def test_a_step_that_fails_fails_the_run_and_its_log_says_why(vertex_api: VertexApi, run: Run) -> None:
    job, _ = run(source="/nowhere")
    assert job.state.name == "PIPELINE_STATE_FAILED"
    assert "The failed tasks are: [check-request]." in job.error.message
    states = {task.task_name: task.state.name for task in job.job_detail.task_details}
    assert (states["check-request"], states["prepare-data"]) == ("FAILED", "PENDING")
    assert any(line.startswith("error: ") and "/nowhere" in line for line in vertex_api.state.logs.messages())

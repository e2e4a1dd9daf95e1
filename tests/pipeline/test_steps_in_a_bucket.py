"""The steps with artifacts in Cloud Storage, as on Vertex AI: through the real clients, against an emulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import set_variables, write_photos
from kfp import dsl

from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.component_interface.step import output_files
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.step import run as prepare
from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.settings import EvaluationSettings
from gpu_pipelines.evaluation.step import run as evaluate
from gpu_pipelines.evaluation.step import warning_of_registry
from gpu_pipelines.registry.upload import UploadSettings
from gpu_pipelines.registry.upload_step import run as upload
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.step import run as train

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi


@pytest.fixture
def bucket(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch) -> str:
    set_variables(monkeypatch, vertex_api.environment())
    return "gs://example-bucket"


def here(kind: Any, folder: Path, name: str) -> Any:
    """An artifact that is one small file, which KFP itself puts into the bucket."""
    return kind(name=name, uri=str(folder / name))


@pytest.mark.slow
def test_a_run_leaves_its_artifacts_in_the_bucket_and_reads_them_from_there(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_PIPELINES_ACCELERATOR", "cpu:1")
    photos = write_photos(tmp_path / "photos", per_class=30)
    dataset = dsl.Dataset(name="dataset", uri=f"{bucket}/run/dataset")
    prepare(
        PrepareSettings(source=str(photos), image_size=16),
        dataset=dataset,
        report=here(dsl.HTML, tmp_path, "data.html"),
        statistics=here(dsl.Metrics, tmp_path, "statistics"),
        advanced={},
    )
    names = RemoteFolder(dataset.uri).names()
    assert "dataset.json" in names
    assert any(name.startswith("train/part-") for name in names)
    checkpoints = dsl.Artifact(name="checkpoints", uri=f"{bucket}/run/attempt-1/checkpoints")
    train(
        TrainingSettings(max_steps=4, global_batch_size=16),
        dataset=dataset,
        checkpoints=checkpoints,
        checkpoint_uri=f"{bucket}/checkpoints/run",
        training_metrics=here(dsl.Metrics, tmp_path, "training"),
        training_report=here(dsl.HTML, tmp_path, "training.html"),
        advanced={},
    )
    assert checkpoints.uri == f"{bucket}/checkpoints/run"
    model = dsl.Model(name="best_checkpoint", uri=f"{bucket}/run/best_checkpoint")
    evaluate(
        EvaluationSettings(registry="vertex://", gates=["accuracy>=0"]),
        dataset=dataset,
        checkpoints=checkpoints,
        best_checkpoint=model,
        evaluation=here(dsl.Metrics, tmp_path, "evaluation"),
        confusion=here(dsl.ClassificationMetrics, tmp_path, "confusion"),
        report=here(dsl.HTML, tmp_path, "evaluation.html"),
        benchmark_results=dsl.Artifact(name="benchmark_results", uri=f"{bucket}/run/benchmark_results"),
        advanced={},
    )
    evaluation = json.loads(RemoteFolder(model.uri).read("evaluation.json"))
    assert evaluation["best"].startswith("step-")
    registered = dsl.Model(name="model", uri=f"{bucket}/run/model")
    inputs: dict[str, Any] = {"best_checkpoint": model, "model": registered, "passed": True, "advanced": {}}
    with pytest.raises(SystemExit):
        upload(UploadSettings(registry="./registry"), **inputs)
    assert "lost with it" in capsys.readouterr().err
    upload(UploadSettings(registry="vertex://", smoke_test=False), **inputs)
    assert registered.metadata["aliases"] == ["challenger", "champion"]
    assert "model.safetensors" in RemoteFolder(registered.uri).names()


@pytest.mark.parametrize(
    ("registry", "storage", "warns"),
    [("./registry", "gs://b/run", True), ("./registry", "", False), ("vertex://", "gs://b/run", False)],
)
def test_an_evaluation_that_can_know_no_champion_says_so(registry: str, storage: str, warns: bool) -> None:
    assert ("compared with no champion" in warning_of_registry(registry, storage)) == warns


def test_an_output_that_was_not_finished_is_not_in_the_bucket(bucket: str) -> None:
    artifact = dsl.Dataset(name="dataset", uri=f"{bucket}/unfinished")

    def prepare_half() -> None:
        with output_files(artifact, "dataset.json") as directory:
            directory.mkdir()
            (directory / "part").write_text("rows")
            raise UserError("the source is gone")

    with pytest.raises(UserError):
        prepare_half()
    assert RemoteFolder(artifact.uri).names() == []

"""Where a step's artifacts are: on Kubeflow its launcher moves them, so that local paths are what a step goes by."""

from __future__ import annotations

from pathlib import Path

import pytest
from kfp.dsl import Artifact, Dataset

from gpu_pipelines.component_interface.step import local_files, output_files, place_of, storage_of
from gpu_pipelines.errors import UserError

RUN, STORAGE = "GPU_PIPELINES_RUN", "GPU_PIPELINES_STORAGE"


@pytest.fixture
def on_kubeflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORAGE, "/mnt/gpu-pipelines")
    monkeypatch.setenv(RUN, "0f4c")


@pytest.mark.usefixtures("on_kubeflow")
@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("minio://mlpipeline/v2/artifacts/x", "/minio/mlpipeline/v2/artifacts/x"),
        ("s3://bucket/x", "/s3/bucket/x"),
        ("gs://bucket/x", "/gcs/bucket/x"),
    ],
)
def test_an_artifact_is_at_its_local_path_whatever_its_storage(uri: str, path: str) -> None:
    dataset = Dataset(name="dataset", uri=uri)
    assert place_of(dataset) == path
    assert local_files(dataset) == Path(path)
    with output_files(dataset, "marker") as directory:
        assert directory == Path(path)


@pytest.mark.usefixtures("on_kubeflow")
def test_an_artifact_that_is_moved_keeps_its_uri_and_says_where_it_is() -> None:
    checkpoints = Artifact(name="checkpoints", uri="minio://mlpipeline/x")
    place = place_of(checkpoints, "gs://bucket/checkpoints/${GPU_PIPELINES_RUN}")
    assert place == "gs://bucket/checkpoints/0f4c"
    assert checkpoints.uri == "minio://mlpipeline/x", "KFP's launcher would refuse to upload to another bucket"
    # As the next step gets it.
    again = Artifact(name="checkpoints", uri=checkpoints.uri, metadata=checkpoints.metadata)
    assert place_of(again) == "gs://bucket/checkpoints/0f4c"


def test_elsewhere_cloud_storage_is_read_by_the_step_itself() -> None:
    checkpoints = Artifact(name="checkpoints", uri="gs://bucket/x")
    assert place_of(checkpoints) == "gs://bucket/x"
    assert place_of(checkpoints, "gs://bucket/checkpoints/1") == "gs://bucket/checkpoints/1"
    assert checkpoints.uri == "gs://bucket/checkpoints/1"
    assert "place" not in checkpoints.metadata


def test_a_place_of_a_run_that_is_not_known_is_refused() -> None:
    with pytest.raises(UserError, match=RUN):
        place_of(Artifact(name="checkpoints", uri="gs://bucket/x"), "gs://bucket/${GPU_PIPELINES_RUN}")


def test_models_of_vertex_are_kept_where_a_step_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Artifact(name="model", uri="minio://mlpipeline/x")
    monkeypatch.setenv(STORAGE, "gs://bucket/storage")
    assert storage_of(model) == "gs://bucket/storage"
    monkeypatch.setenv(STORAGE, "/mnt/gpu-pipelines")
    assert storage_of(model) == "", "a claim is no place for Vertex AI, and a registry in it is not lost"
    monkeypatch.delenv(STORAGE)
    assert storage_of(Artifact(name="model", uri="gs://root/x")) == "gs://root/x"

"""The smoke test of an upload: the server on the uploaded files, before the version counts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from conftest import set_variables
from exported_models import LABELS, export
from google.cloud import aiplatform_v1

from gpu_pipelines.artifacts.examples import Examples
from gpu_pipelines.artifacts.image_features import ImageGeometry
from gpu_pipelines.artifacts.remote_files import RemoteFolder
from gpu_pipelines.errors import UserError
from gpu_pipelines.registry import open_registry
from gpu_pipelines.registry.serving_container import HUGGING_FACE_IMAGE, serving_container
from gpu_pipelines.registry.upload import UploadSettings, _smoke_test, upload_model
from gpu_pipelines.serving.comparison import differences
from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.targets.vertex.runs.pipelines import parsed_spec
from gpu_pipelines.tasks.image_classification.recipe import ImageClassification

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

BUCKET = "gs://example-bucket"
STEPS = "europe-docker.pkg.dev/p/r/steps:0.1.0"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of texts with its examples."""
    return export("text_classification", tmp_path_factory.mktemp("good") / "model")


@pytest.fixture(scope="module")
def another(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that does not predict what its examples say."""
    model = export("text_classification", tmp_path_factory.mktemp("another") / "model", seed=1)
    examples = Examples.load(good)
    predictions = [{**each, "scores": {**each["scores"], "ant": 0.9}} for each in examples.predictions]
    Examples(examples.task, examples.instances, predictions).save(model)
    return model


def test_what_was_uploaded_is_served_as_it_was_evaluated(
    good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = UploadSettings(registry=str(tmp_path / "registry"))
    assert upload_model(settings, good, passed=True).aliases == ("challenger", "champion")
    assert "smoke test: 3 examples served as evaluated" in capsys.readouterr().out


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_a_model_that_is_stored_in_16_bits_predicts_in_fp32_as_it_was_evaluated(
    tmp_path: Path, stored: torch.dtype
) -> None:
    geometry = ImageGeometry(16, "RGB")
    recipe = ImageClassification(LABELS, geometry.preprocessing(), geometry.shape)
    recipe.export(recipe.build_model("convnext-micro").to(stored), tmp_path)
    predictor = load_predictor(tmp_path, ServerSettings())
    assert {weight.dtype for weight in predictor.network.parameters()} == {torch.float32}


def test_a_gpu_that_is_too_small_for_the_model_is_told_in_a_line(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(UserError, match="cannot be loaded: OutOfMemoryError: CUDA out of memory"):
        load_predictor(good, ServerSettings())


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_not_added(good: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(good, tmp_path / "model")
    (damaged / "tokenizer.json").write_text("{}")
    settings = UploadSettings(registry=str(tmp_path / "registry"))
    with pytest.raises(UserError, match=r"smoke test of the uploaded model failed.*ended with status 2"):
        upload_model(settings, damaged, passed=True)
    assert open_registry(settings.registry).names() == []


@pytest.fixture
def vertex(vertex_api: VertexApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[VertexApi]:
    set_variables(monkeypatch, vertex_api.environment())
    monkeypatch.setattr("gpu_pipelines.registry.vertex._POLL_SECONDS", 0.02)
    monkeypatch.chdir(tmp_path)
    return vertex_api  # type: ignore[return-value]


@pytest.mark.slow
def test_on_vertex_a_model_that_predicts_something_else_is_not_added(
    good: Path, another: Path, vertex: VertexApi, capsys: pytest.CaptureFixture[str]
) -> None:
    place, untested = f"{BUCKET}/runs/1", UploadSettings(registry="vertex://", smoke_test=False)
    assert upload_model(untested, good, passed=True, place=place).aliases == ("challenger", "champion")
    files = RemoteFolder(f"{BUCKET}/models").names()
    with pytest.raises(UserError, match=r"example 0 of 3: the score of 'ant' is 0\.3\d+, evaluated was 0\.9000"):
        upload_model(UploadSettings(registry="vertex://"), another, passed=True, place=place)
    (versions,) = vertex.state.models.versions.values()
    assert [set(version.version_aliases) for version in versions] == [{"default", "challenger", "champion"}]
    assert RemoteFolder(f"{BUCKET}/models").names() == files


@pytest.mark.parametrize("image", ["europe-docker.pkg.dev/p/r/mine:1", ""])
def test_the_server_of_somebody_else_is_not_tested(
    good: Path,
    vertex: VertexApi,
    image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A container of the user's own, and vLLM, which a large language model gets by itself."""
    model = good if image else export("causal_lm", tmp_path / "model")
    monkeypatch.setattr("gpu_pipelines.registry.serving_container.LARGE", 1)
    upload_model(
        UploadSettings(registry="vertex://", serving_image=image), model, passed=True, place=f"{BUCKET}/runs/1"
    )
    assert "no smoke test: the container" in capsys.readouterr().out
    (versions,) = vertex.state.models.versions.values()
    container = versions[0].container_spec
    if image:
        assert container.image_uri == image
    else:
        assert "/pytorch-vllm-serve:" in container.image_uri
        assert "--model=$(AIP_STORAGE_URI)" in container.args
        assert (container.predict_route, container.health_route) == ("/generate", "/ping")
        assert [port.container_port for port in container.ports] == [8080]


def test_the_image_of_the_settings_is_the_default_and_tested(good: Path, vertex: VertexApi, tmp_path: Path) -> None:
    image = "europe-docker.pkg.dev/p/r/serving:0.1.0-cpu"
    (tmp_path / "gpu-pipelines.yaml").write_text(f"serving_image: {image}\n")
    settings = UploadSettings(registry="vertex://", smoke_test=False)
    upload_model(settings, good, passed=True, place=f"{BUCKET}/runs/1")
    (versions,) = vertex.state.models.versions.values()
    assert versions[0].container_spec.image_uri == image
    assert not serving_container(good).is_of_others
    assert serving_container(good, "europe-docker.pkg.dev/p/serving/mine@sha256:0").is_of_others


def job_of(vertex: VertexApi, image: str, **parameters: str) -> str:
    """A pipeline job whose steps run in an image; gives its name."""
    spec = parsed_spec(
        (ROOT / "compiled/train_evaluate_upload/vertex/image_classification/l4-1.yaml").read_text(), "l4-1.yaml"
    )
    for executor in spec["deploymentSpec"]["executors"].values():
        if "container" in executor:
            executor["container"]["image"] = image
    parent = f"projects/{os.environ['CLOUDSDK_CORE_PROJECT']}/locations/{os.environ['CLOUDSDK_AI_REGION']}"
    held = vertex.state.pipeline_jobs._names.number(f"{parent}/pipelineJobs/job-1")
    job = aiplatform_v1.PipelineJob(name=held, pipeline_spec=spec, runtime_config={"parameter_values": parameters})
    vertex.state.pipeline_jobs.jobs[held] = job
    return f"{parent}/pipelineJobs/job-1"


PARAMETER = "{{$.inputs.parameters['pipelinechannel--steps']}}"


@pytest.mark.parametrize("image", [STEPS, PARAMETER])
def test_what_was_tested_is_what_serves(good: Path, vertex: VertexApi, image: str) -> None:
    """The upload runs in the image of the steps, which has the server: the version gets that very image."""
    job = job_of(vertex, image, steps=STEPS)
    settings = UploadSettings(registry="vertex://", pipeline_job=job, smoke_test=False)
    check = _smoke_test(settings, good, open_registry("vertex://", f"{BUCKET}/runs/1"))
    assert check._what_it_says() == f"the version is served by the image that was tested, {STEPS}\n"
    upload_model(settings, good, passed=True, place=f"{BUCKET}/runs/1")
    ((version,),) = vertex.state.models.versions.values()
    container = version.container_spec
    assert (container.image_uri, list(container.command)) == (STEPS, ["python3", "-m", "gpu_pipelines.serving"])


@pytest.mark.parametrize("asked", ["", "europe-docker.pkg.dev/p/r/serving:0.1.0-cpu"])
def test_what_was_not_tested_is_said(
    good: Path, vertex: VertexApi, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = "projects/123456789/locations/us-central1/pipelineJobs/gone"
    settings = UploadSettings(registry="vertex://", pipeline_job=job, serving_image=asked)
    check = _smoke_test(settings, good, open_registry("vertex://", f"{BUCKET}/runs/1", asked))
    told = check._what_it_says() + capsys.readouterr().out
    assert f"{asked or HUGGING_FACE_IMAGE} serves the version, and was not tested" in told
    assert "models deploy tests it on the endpoint" in told
    assert "the image of this step is not known" in told


def test_what_is_compared() -> None:
    scores = {"a": 0.5, "b": 0.499, "c": 0.001}
    examples = Examples("text_classification", [{"text": "x"}], [{"label": "a", "scores": scores}])
    assert differences(examples, [{"label": "b", "scores": scores}]) == []
    assert differences(examples, [{"label": "a", "scores": {**scores, "b": 0.4949}}]) == []
    for wrong in (
        {"label": "c", "scores": scores},
        {"label": "a", "scores": {**scores, "b": 0.493}},
        {"label": "a", "scores": {"a": 0.5, "b": 0.499}},
        {"label": "a", "scores": {**scores, "b": None}},
        {"label": "a"},
        "a",
    ):
        assert differences(examples, [wrong]), wrong
    assert differences(examples, [])
    loss = Examples("causal_lm", [{"prompt": "x"}], [{"loss": 4.0, "tokens": 3}])
    assert differences(loss, [{"loss": 4.019, "tokens": 3}]) == []
    assert differences(loss, [{"loss": 4.021, "tokens": 3}])
    assert differences(loss, [{"loss": 4.0, "tokens": 4}])
    assert differences(loss, [{"loss": None, "tokens": 3}])


def test_scores_of_a_task_of_another_package_are_compared_as_they_are() -> None:
    expected = {"topics": ["billing"], "scores": {"billing": 0.9, "login": 0.2}}
    examples = Examples("topics.task:Topics", [{"text": "an invoice"}], [expected])
    assert differences(examples, [{"topics": ["billing"], "scores": {"billing": 0.901, "login": 0.2}}]) == []
    assert differences(examples, [{**expected, "scores": {"billing": 0.9, "login": 0.3}}]) == [
        "example 0 of 1: login is 0.3000, evaluated was 0.2000"
    ]
    assert differences(examples, [{**expected, "topics": []}])
    listed = Examples("topics.task:Topics", [{"text": "an invoice"}], [{"label": ["billing"], "scores": [0.9]}])
    assert differences(listed, [{"label": ["billing"], "scores": [0.9]}]) == []

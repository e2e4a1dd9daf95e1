"""`batch_prediction` for Vertex AI: a CustomJob on the GPU that was chosen, run by hand or by a schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import set_variables
from vertex_commands import command, connected_sdk, put_texts

from gpu_pipelines.accelerators import plan
from gpu_pipelines.registry import open_registry
from gpu_pipelines.registry.registered import Promotion
from gpu_pipelines.targets.compiled import documents_of
from gpu_pipelines.targets.spec_steps import takers_of
from gpu_pipelines.targets.vertex.placement.machines import machines_of
from gpu_pipelines.targets.vertex.target import VertexTarget

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

PIPELINE, IMAGE = "batch_prediction", "eu.example/steps:1"
SENT = (PIPELINE, "--target", "vertex", "--accelerator", "l4:1")
GIVEN = (
    *("-p", "source=gs://example-bucket/photos", "-p", "model_name=photos"),
    *("-p", "output=gs://example-bucket/predictions/{date}"),
)


def put_model(api: VertexApi, folder: Path) -> None:
    """Makes photos, a classifier, champion of the registry, and gs://example-bucket/photos a source."""
    model = folder / "exported"
    model.mkdir()
    architecture = {"architectures": ["ViTForImageClassification"], "id2label": {"0": "no", "1": "yes"}}
    (model / "config.json").write_text(json.dumps(architecture))
    (model / "model.safetensors").write_bytes(b"weights")
    with pytest.MonkeyPatch.context() as patch:
        set_variables(patch, api.environment())
        open_registry("vertex://", "gs://example-bucket/runs").add("photos", model, {}, Promotion(True, None))
    api.storage.put("photos/1.png", b"image")


def test_the_step_is_a_custom_job_on_the_gpus_of_the_plan_and_is_never_taken_from_a_cache() -> None:
    [spec] = documents_of(VertexTarget().text_of(PIPELINE, plan("l4:4", strategy="spot")))
    (machine,) = machines_of(spec, "us-central1")
    assert (machine.step, machine.plan.spec, machine.plan.strategy) == ("predict-batch", "l4:4", "spot")
    tasks = spec["root"]["dag"]["tasks"]
    assert not any(task.get("cachingOptions", {}).get("enableCache") for task in tasks.values())
    assert tasks["predict-batch"]["retryPolicy"]["maxRetryCount"] == 2, "what was done before is kept"
    assert "retryPolicy" not in tasks["check-prediction"], "its errors are a user's"
    assert takers_of(spec, "max_rejected") == {"predict-batch"}, "a run that goes on may change it"


@pytest.mark.slow
def test_a_wrong_request_of_the_console_is_refused_before_a_machine_is_started(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_pipelines.emulator.running.pipelines import PipelineBackend

    put_model(vertex_api, tmp_path)
    put_texts(vertex_api)
    set_variables(monkeypatch, vertex_api.environment())
    sdk, backend = connected_sdk(vertex_api), PipelineBackend(vertex_api, rehearse="cpu:1")
    file = tmp_path / "pipeline.yaml"
    file.write_text(VertexTarget().text_of(PIPELINE, plan("l4:1")))
    given = {"steps_image": IMAGE, "source": "gs://example-bucket/texts", "model_name": "photos"}
    job = sdk.PipelineJob("scores", str(file), parameter_values=given, job_id="scores")
    job.submit()
    backend.run(job.resource_name)
    ended = vertex_api.state.pipeline_jobs.one(job.resource_name)
    states = {task.task_name: task.state.name for task in ended.job_detail.task_details}
    assert (states["check-prediction"], states["predict-batch"]) == ("FAILED", "PENDING"), states
    assert "has no column 'image'; it has text, label." in "\n".join(vertex_api.state.logs.messages())
    assert not vertex_api.state.custom_jobs.jobs


def test_it_is_uploaded_and_scheduled_by_its_name(vertex_api: VertexApi, tmp_path: Path) -> None:
    uploaded = command(vertex_api, tmp_path, "upload", PIPELINE, "--accelerator", "l4:1")
    assert uploaded.status == 0, uploaded.err
    nightly = ("--cron", "0 3 * * *", "--name", "scores")
    done = command(vertex_api, tmp_path, "schedule", "create", PIPELINE, *nightly, *GIVEN)
    assert done.status == 0, done.err
    [made] = vertex_api.state.schedules.schedules.values()
    job = made.create_pipeline_job_request.pipeline_job
    assert "/batch-prediction/sha256:" in job.template_uri
    values = dict(job.runtime_config.parameter_values)
    assert values["output"] == "gs://example-bucket/predictions/{date}"
    assert (values["registry"], values["model_version"]) == ("vertex://", "champion")
    assert "predict-batch: 1 × g2-standard-" in done.err, "what each run costs"


def test_a_run_is_shown_before_it_is_sent_and_places_of_this_machine_are_refused(
    vertex_api: VertexApi, tmp_path: Path
) -> None:
    put_model(vertex_api, tmp_path)
    request = ("run", PIPELINE, "--target", "vertex", "--accelerator", "l4:1")
    done = command(vertex_api, tmp_path, *request, *GIVEN, "-p", "rows_at_once=64", "--dry-run")
    assert done.status == 0, done.err
    values = json.loads(done.out)["body"]["runtimeConfig"]["parameterValues"]
    assert (values["source"], values["advanced"]) == ("gs://example-bucket/photos", {"rows_at_once": 64})
    for given, message in (
        ("source=rows.jsonl", "The source rows.jsonl is not where Vertex AI can read it"),
        ("output=./out", "output is ./out, which would be a directory of the container"),
        ("output=scores/{date}", "output is scores/{date}, which would be a directory of the container"),
        ("registry=./registry", "The registry ./registry would be a directory of the container"),
        ("rows_at_once=-1", "rows_at_once is -1; give 0 or more"),
        ('advanced={"rows": 1}', "There is no parameter 'rows'"),
    ):
        refused = command(vertex_api, tmp_path, *request, *GIVEN, "-p", given)
        assert refused.status == 2
        assert message in refused.err
    assert not vertex_api.state.pipeline_jobs.jobs
    for place in ("", "bq://example-project.shop.scores", "/gcs/example-bucket/scores"):
        taken = command(vertex_api, tmp_path, *request, *GIVEN, "-p", f"output={place}", "--dry-run")
        assert taken.status == 0, taken.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("model_name=potos",), "There is no model 'potos' in projects/example-project/locations/us-central1. Did you"),
        (("model_version=best",), "has no version or alias 'best'"),
        (
            ("registry=vertex://example-project/europe-west4",),
            "There is no model 'photos' in projects/example-project/",
        ),
        (("source=gs://example-bucket/none.jsonl",), "gs://example-bucket/none.jsonl does not exist"),
        (("source=gs://example-bucket/texts",), "has no column 'image'; it has text, label."),
        (("source=gs://example-bucket/photos", "key_column=id"), "is images, which has no columns"),
        (("max_new_tokens=5",), "a model for image_classification takes none"),
    ],
)
def test_a_model_and_a_source_that_do_not_go_together_are_refused_before_a_machine_is_paid(
    vertex_api: VertexApi, tmp_path: Path, given: tuple[str, ...], message: str
) -> None:
    put_model(vertex_api, tmp_path)
    put_texts(vertex_api)
    asked = [part for value in given for part in ("-p", value)]
    done = command(vertex_api, tmp_path, "run", *SENT, *GIVEN, *asked)
    assert (done.status, done.out) == (2, ""), done.err
    assert message in done.err
    assert not vertex_api.state.pipeline_jobs.jobs
    assert command(vertex_api, tmp_path, "upload", PIPELINE, "--accelerator", "l4:1").status == 0
    nightly = ("--cron", "0 3 * * *", "--name", "scores")
    later = command(vertex_api, tmp_path, "schedule", "create", PIPELINE, *nightly, *GIVEN, *asked)
    assert later.status == 0, later.err
    assert "warning: as things are now, each run will fail: " in later.err
    assert message in later.err


OWN = """
from kfp import dsl
from gpu_pipelines.components import accelerate, predict_batch
@dsl.pipeline(name="mine")
def mine(name: str = "photos", source: str = "gs://example-bucket/photos"):
    accelerate(predict_batch(source=source, model_name=name), "l4:1")
"""


def test_a_prediction_in_a_pipeline_of_ones_own_is_looked_at_before_it_is_sent(
    vertex_api: VertexApi, tmp_path: Path
) -> None:
    put_model(vertex_api, tmp_path)
    put_texts(vertex_api)
    (tmp_path / "mine.py").write_text(OWN)
    sent = ("run", "mine.py", "--target", "vertex", "--dry-run")
    done = command(vertex_api, tmp_path, *sent)
    assert done.status == 0, done.err
    for given, message in (
        ("name=potos", "There is no model 'potos' in projects/example-project/locations/us-central1."),
        ("source=gs://example-bucket/texts", "has no column 'image'; it has text, label."),
    ):
        refused = command(vertex_api, tmp_path, *sent, "-p", given)
        assert (refused.status, message in refused.err) == (2, True), refused.err
    here = command(vertex_api, tmp_path, "run", "mine.py", "-p", "source=sample:digits")
    assert (here.status, "There is no model" in here.err, (tmp_path / "runs").exists()) == (2, True, False), here.err


def test_the_registry_is_that_of_the_run(vertex_api: VertexApi, tmp_path: Path) -> None:
    put_model(vertex_api, tmp_path)
    elsewhere = command(vertex_api, tmp_path, "run", *SENT, *GIVEN, "--region", "europe-west4", "--dry-run")
    assert "There is no model 'photos' in projects/example-project/locations/europe-west4" in elsewhere.err
    here = command(vertex_api, tmp_path, "run", *SENT, *GIVEN, "--region", "us-central1", "--dry-run")
    assert here.status == 0, here.err


def test_a_model_that_cannot_be_seen_from_here_is_left_to_the_step(vertex_api: VertexApi, tmp_path: Path) -> None:
    vertex_api.fail_next("GET .*/models(\\?|$)", 403, message="Permission 'models.list' denied.")
    done = command(vertex_api, tmp_path, "run", *SENT, *GIVEN, "--dry-run")
    assert done.status == 0, done.err
    assert "note: " in done.err
    assert "The step that needs it checks it." in done.err

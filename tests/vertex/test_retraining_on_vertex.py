"""`scheduled_retraining` for Vertex AI: what its compiled file says, and a schedule of it from upload to request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from vertex_commands import command

from gpu_pipelines.accelerators import plan
from gpu_pipelines.targets.compiled import documents_of, steps_of
from gpu_pipelines.targets.vertex.placement.machines import machines_of
from gpu_pipelines.targets.vertex.target import VertexTarget

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

PIPELINE = "scheduled_retraining"
MAIL = "vertex-pipelines-notification-email"
DATA = ("-p", "source=gs://example-bucket/photos")
TOLD = ("-p", "notify=team@example.com")


@pytest.fixture(scope="module")
def text() -> str:
    return VertexTarget().text_of(PIPELINE, plan("l4:4", nodes=2))


@pytest.fixture(scope="module")
def spec(text: str) -> dict[str, Any]:
    [document] = documents_of(text)
    return dict(document)


def tasks_in(spec: dict[str, Any], part: str) -> dict[str, Any]:
    return dict(spec["components"][part]["dag"]["tasks"])


def test_whoever_is_to_be_told_is_told_however_the_rest_ends(spec: dict[str, Any]) -> None:
    tasks = spec["root"]["dag"]["tasks"]
    assert set(tasks) == {"exit-handler-1", MAIL}
    mail = tasks[MAIL]
    assert mail["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    assert mail["dependentTasks"] == ["exit-handler-1"]
    assert mail["inputs"]["parameters"] == {
        "recipients": {"componentInputParameter": "notify"},
        "pipeline_task_final_status": {"taskFinalStatus": {"producerTask": "exit-handler-1"}},
    }
    assert not mail["cachingOptions"].get("enableCache")
    command_of_it = spec["deploymentSpec"]["executors"][f"exec-{MAIL}"]["container"]["command"]
    assert "google_cloud_pipeline_components.container.v1.vertex_notification_email.executor" in command_of_it
    assert spec["root"]["inputDefinitions"]["parameters"]["notify"]["parameterType"] == "LIST"


def test_nothing_runs_before_the_look_at_the_data_and_all_else_hangs_on_its_answer(spec: dict[str, Any]) -> None:
    tasks = tasks_in(spec, "comp-exit-handler-1")
    assert set(tasks) == {"check-request", "check-for-new-data", "condition-2"}
    assert tasks["check-for-new-data"]["dependentTasks"] == ["check-request"]
    assert tasks["condition-2"]["dependentTasks"] == ["check-for-new-data", "check-request"]
    condition = tasks["condition-2"]["triggerPolicy"]["condition"]
    assert condition == "inputs.parameter_values['pipelinechannel--check-for-new-data-Output'] == true"
    assert steps_of(spec) == {
        "check-request": [],
        "check-for-new-data": ["check-request"],
        "prepare-data": ["check-for-new-data", "check-request"],
        "train-model": ["prepare-data"],
        "evaluate-checkpoints": ["prepare-data", "train-model"],
        "upload-model": ["evaluate-checkpoints"],
        MAIL: ["upload-model"],
    }


def test_model_and_tokenizer_are_those_that_the_look_has_chosen(spec: dict[str, Any]) -> None:
    tasks = tasks_in(spec, "comp-condition-2")
    for task, name in (("train-model", "model"), ("prepare-data", "tokenizer")):
        given = tasks[task]["inputs"]["parameters"][name]
        assert given == {"componentInputParameter": f"pipelinechannel--check-for-new-data-{name}"}


def test_only_prepared_data_comes_from_a_cache_and_what_it_was_made_of_is_in_its_key(spec: dict[str, Any]) -> None:
    tasks = {**tasks_in(spec, "comp-exit-handler-1"), **tasks_in(spec, "comp-condition-2")}
    del tasks["condition-2"]
    cached = [name for name, task in tasks.items() if task.get("cachingOptions", {}).get("enableCache")]
    assert cached == ["prepare-data"]
    given = tasks["prepare-data"]["inputs"]["parameters"]["source_fingerprint"]
    assert given == {"componentInputParameter": "pipelinechannel--check-request-source_fingerprint"}
    (looked,) = [tasks["check-for-new-data"]["inputs"]["parameters"]["source_fingerprint"]["taskOutputParameter"]]
    assert looked["producerTask"] == "check-request", "the data is looked at once"


def test_gpus_are_where_the_plan_puts_them(spec: dict[str, Any]) -> None:
    training, evaluation = machines_of(spec, "us-central1")
    assert (training.step, training.plan.spec, training.plan.nodes) == ("train-model", "l4:4", 2)
    assert (evaluation.step, evaluation.plan.spec, evaluation.plan.nodes) == ("evaluate-checkpoints", "l4:1", 1)
    plain = spec["deploymentSpec"]["executors"]["exec-check-for-new-data"]["container"]
    assert "accelerator" not in plain["resources"]


def test_a_version_knows_the_pipeline_job_it_is_from(spec: dict[str, Any]) -> None:
    given = tasks_in(spec, "comp-condition-2")["upload-model"]["inputs"]["parameters"]["pipeline_job"]
    assert given == {"runtimeValue": {"constant": "{{$.pipeline_job_resource_name}}"}}


def test_it_is_uploaded_and_scheduled_by_its_name(vertex_api: VertexApi, tmp_path: Path) -> None:
    uploaded = command(vertex_api, tmp_path, "upload", PIPELINE, "--accelerator", "l4:1")
    assert uploaded.status == 0, uploaded.err
    nightly = ("--cron", "0 3 * * *", "--name", "nightly")
    done = command(vertex_api, tmp_path, "schedule", "create", PIPELINE, *nightly, *DATA, *TOLD)
    assert done.status == 0, done.err
    [made] = vertex_api.state.schedules.schedules.values()
    job = made.create_pipeline_job_request.pipeline_job
    assert "/scheduled-retraining/sha256:" in job.template_uri
    values = dict(job.runtime_config.parameter_values)
    assert (values["source"], list(values["notify"])) == ("gs://example-bucket/photos", ["team@example.com"])
    assert values["registry"] == "vertex://"
    assert "train-model: 1 × g2-standard-" in done.err, "what each run costs"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "The parameter notify must be given."),
        (("-p", "notify="), "notify has 0 addresses; give one to 3"),
        (("-p", "notify=a@b.de,c@d.de,e@f.de,g@h.de"), "notify has 4 addresses"),
        (("-p", "notify=somebody"), "notify has 'somebody', which is not an e-mail address."),
    ],
)
def test_a_request_that_nobody_would_hear_of_is_refused(
    vertex_api: VertexApi, tmp_path: Path, given: tuple[str, ...], message: str
) -> None:
    done = command(vertex_api, tmp_path, "run", PIPELINE, "--target", "vertex", "--accelerator", "l4:1", *DATA, *given)
    assert done.status == 2
    assert message in done.err
    assert not vertex_api.state.pipeline_jobs.jobs


def test_a_run_can_be_looked_at_before_it_is_submitted(vertex_api: VertexApi, tmp_path: Path) -> None:
    for label in ("red", "blue"):
        vertex_api.storage.put(f"photos/{label}/1.png", b"-")
    request = ("run", PIPELINE, "--target", "vertex", "--accelerator", "l4:1", *DATA, *TOLD, "--dry-run")
    done = command(vertex_api, tmp_path, *request)
    assert done.status == 0, done.err
    body = json.loads(done.out)["body"]
    assert body["pipelineSpec"]["pipelineInfo"]["name"] == "scheduled-retraining"
    assert body["runtimeConfig"]["parameterValues"]["notify"] == ["team@example.com"]


def test_the_file_is_one_document(text: str) -> None:
    assert len(list(yaml.safe_load_all(text))) == 1

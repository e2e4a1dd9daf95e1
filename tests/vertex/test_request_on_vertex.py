"""A compiled file as the form of Vertex AI has it: its parameters, its image, what is kept, what is tried again."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import Finished, set_variables, write_photos
from vertex_commands import command, connected_sdk, put_texts

from gpu_pipelines.accelerators import plan
from gpu_pipelines.component_interface.catalog import load_component
from gpu_pipelines.dag import PIPELINES, PUBLISHED
from gpu_pipelines.dag.advanced import is_of
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.compiled import documents_of
from gpu_pipelines.targets.vertex.placement.data_nodes import DataNodes
from gpu_pipelines.targets.vertex.placement.job_spec import JobOptions
from gpu_pipelines.targets.vertex.runs.pipelines import pipeline_job
from gpu_pipelines.targets.vertex.target import VertexTarget
from gpu_pipelines.tasks.tasks import TASKS

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

PIPELINE, RETRAINING, TUNING = "train_evaluate_upload", "scheduled_retraining", "tune_train_evaluate_upload"
IMAGE = "eu.example/steps:1"
#: A form with more fields is not read. Besides those of a training, a search and a look for drift have their own.
MOST_FIELDS = 21
OF_ITS_OWN = {"tune_train_evaluate_upload": 6, "scheduled_retraining": 2}
#: The components of a pipeline whose parameters are in its form; those of all others are the training's.
TRAINING = ["prepare_data", "train_model", "evaluate_checkpoints", "upload_model"]
ALONE = "batch_prediction"
COMPONENTS = {ALONE: ["predict_batch"], TUNING: ["prepare_data", "tune_model", "evaluate_checkpoints", "upload_model"]}
#: The pipelines, each for all tasks and for one; a prediction is for the task of its model.
FORMS = [(name, task) for name in PUBLISHED for task in ("", *TASKS) if not task or name != ALONE]
FEW_STEPS = {"image_size": 16, "global_batch_size": 16, "advanced": {"max_steps": 6, "checkpoint_every_steps": 3}}
Run = Callable[..., dict[str, str]]


def spec_of(
    pipeline: str = PIPELINE, target: VertexTarget | None = None, task: str = "", **wanted: Any
) -> dict[str, Any]:
    text = (target or VertexTarget()).text_of(pipeline, plan(**{"spec": "l4:1", **wanted}), task=task)
    return dict(documents_of(text)[0])


def parameters_of(spec: dict[str, Any]) -> dict[str, Any]:
    return dict(spec["root"]["inputDefinitions"]["parameters"])


@pytest.fixture
def run(vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Submits a pipeline with the SDK and runs it; gives the state of each task. `broken` tasks fail so many times."""
    set_variables(monkeypatch, vertex_api.environment())
    from gpu_pipelines.emulator.running.pipelines import PipelineBackend

    sdk = connected_sdk(vertex_api)
    backend = PipelineBackend(vertex_api, rehearse="cpu:1")
    file = tmp_path / "pipeline.yaml"
    file.write_text(VertexTarget().text_of(PIPELINE, plan("l4:1"), task="image_classification"))
    runs = count(1)

    def submit(broken: dict[str, int] | None = None, cache: bool | None = None, **parameters: Any) -> dict[str, str]:
        backend.broken = dict(broken or {})
        given = {"steps_image": IMAGE, **FEW_STEPS, **parameters}
        job = sdk.PipelineJob(
            "train", str(file), parameter_values=given, job_id=f"train-{next(runs)}", enable_caching=cache
        )
        job.submit()
        backend.run(job.resource_name)
        ended = vertex_api.state.pipeline_jobs.one(job.resource_name)
        assert {IMAGE} == {image for task, image in backend.images.items() if task in ("check-request", "prepare-data")}
        return {task.task_name: task.state.name for task in ended.job_detail.task_details}

    return submit


def grow(photos: Path) -> None:
    more = write_photos(photos.parent / "more", per_class=6, seed=1)
    for path in list(more.glob("*/*")):
        path.rename(photos / path.parent.name / f"more-{path.name}")


@pytest.mark.slow
def test_data_that_has_changed_is_prepared_again_and_other_data_is_not(run: Run, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=12)
    # What comes after the preparation is not run here; the first preparation is, once more, after an error.
    given = {"source": str(photos), "broken": {"train-model": 9}}
    first = run(**{**given, "broken": {"train-model": 9, "prepare-data": 1}})
    second = run(**given)
    grow(photos)
    third = run(**given)
    assert [each["check-request"] for each in (first, second, third)] == ["SUCCEEDED"] * 3
    assert [each["prepare-data"] for each in (first, second, third)] == ["SUCCEEDED", "SKIPPED", "SUCCEEDED"]
    assert first["train-model"] == "FAILED"


def test_a_form_with_an_error_ends_in_the_first_step(vertex_api: VertexApi, run: Run) -> None:
    states = run(source="sample:digits", gates=["acuracy>=0.9"], advanced={"paking": False})
    assert (states["check-request"], states["prepare-data"]) == ("FAILED", "PENDING")
    (told,) = [text for text in vertex_api.state.logs.messages() if text.startswith("error: ")]
    assert told == "error: 2 things are wrong:"
    said = "\n".join(vertex_api.state.logs.messages())
    assert "advanced has no field 'paking'" in said
    assert "no metric 'acuracy'" in said


@pytest.mark.slow
def test_a_training_whose_evaluation_failed_is_gone_on_with(vertex_api: VertexApi, run: Run, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", per_class=20)
    given = {"source": str(photos), "gates": ["accuracy>=0"], "model_name": "photos"}
    first = run(broken={"evaluate-checkpoints": 9}, **given)
    assert (first["train-model"], first["evaluate-checkpoints"]) == ("SUCCEEDED", "FAILED")
    uri = checkpoints_in_the_bucket()
    second = run(checkpoint_uri=uri, **given)
    assert set(second.values()) <= {"SUCCEEDED", "SKIPPED"}, vertex_api.state.logs.messages()[-30:]
    said = vertex_api.state.logs.messages()
    assert any("continuing from step-00000006" in line for line in said)
    grow(photos)
    third = run(checkpoint_uri=uri, **given)
    assert third["train-model"] == "FAILED"
    assert any("was trained with a different dataset fingerprint" in line for line in vertex_api.state.logs.messages())
    fourth = run(checkpoint_uri=uri, **{**given, "learning_rate": 0.1})
    assert (fourth["check-request"], fourth["prepare-data"]) == ("FAILED", "PENDING")


def checkpoints_in_the_bucket() -> str:
    """Where those of the only run are."""
    from gpu_pipelines.artifacts.remote_files import listed

    (place,) = {name.rpartition("/step-")[0] for name in listed("gs://example-bucket/root") if "/step-" in name}
    return place


@pytest.mark.parametrize(("pipeline", "task"), FORMS)
def test_a_form_has_few_fields_and_all_others_are_described_in_one(pipeline: str, task: str) -> None:
    known = parameters_of(spec_of(pipeline, task=task))
    assert len(known) <= MOST_FIELDS + OF_ITS_OWN.get(pipeline, 0)
    required = {name for name, each in known.items() if not each.get("isOptional")}
    needed = {RETRAINING: ["notify"], TUNING: ["space"]}
    assert required == {"steps_image", *needed.get(pipeline, [])}
    described = known["advanced"]["description"]
    lines = [line.removeprefix("- ").partition(" (")[0] for line in described.splitlines() if line.startswith("- ")]
    components = [*COMPONENTS.get(pipeline, TRAINING), *(["check_for_new_data"] if pipeline == RETRAINING else [])]
    every = {
        name
        for component in components
        for name, each in load_component(component).component_spec.inputs.items()
        if "@" not in each.type
    } - {
        *("passed", "pipeline_job", "encryption_key", "source_fingerprint", "test_source_fingerprint", "advanced"),
        "outcome_uri",
    }
    of_others = {name for name in every if not is_of(name, task)}
    of_others |= {"task"} if task else set()
    assert {*lines, *known} - {"advanced", "steps_image", "notify"} == every - of_others
    assert not set(lines) & set(known)


def test_the_file_of_a_task_has_that_task_in_every_step_and_fitting_defaults() -> None:
    for task in TASKS:
        spec = spec_of(task=task)
        tasks = spec["root"]["dag"]["tasks"]
        for step in ("check-request", "prepare-data"):
            given = tasks[step]["inputs"]["parameters"]["task"]
            assert given == {"runtimeValue": {"constant": task}}, step
        known = parameters_of(spec)
        assert known["model"]["defaultValue"] in TASKS[task].models
        assert known["source"]["defaultValue"].startswith("sample:")


@pytest.mark.parametrize(
    ("target", "wanted", "jobs"),
    [
        (VertexTarget(), {"spec": "l4:4"}, 2),
        (VertexTarget(options=JobOptions(reduction_server=True)), {"spec": "a100:16", "nodes": 4}, 2),
        (VertexTarget(data=DataNodes(2)), {}, 3),
    ],
)
def test_every_step_runs_in_the_image_of_the_form(target: VertexTarget, wanted: dict[str, Any], jobs: int) -> None:
    from single_tasks import executor_input_of, image_of, payload_of, tasks_of

    from gpu_pipelines.emulator.pipelines.payload import PipelineRun

    spec = spec_of(target=target, **wanted)
    run = PipelineRun("gs://example-bucket/root", Path("/gcs/none"), {"steps_image": IMAGE})
    for task in tasks_of(spec):
        executor = spec["deploymentSpec"]["executors"][f"exec-{task}"]["container"]
        if "--payload" not in executor["args"]:
            assert image_of(spec, task, run) == IMAGE, task
            continue
        inputs = executor_input_of(spec, task, run, {"dataset": "gs://b/d", "checkpoints": "gs://b/c"})
        pools = json.loads(payload_of(spec, task, run, inputs))["job_spec"]["worker_pool_specs"]
        images = {pool["container_spec"]["image_uri"] for pool in pools}
        assert {image for image in images if "reductionserver" not in image} == {IMAGE}, task
        jobs -= 1
    assert jobs == 0


def test_an_image_that_is_known_is_no_parameter() -> None:
    spec = spec_of(target=VertexTarget(ProjectSettings(image=IMAGE)))
    assert "steps_image" not in parameters_of(spec)
    assert spec["pipelineInfo"]["description"].endswith(f"Its steps run in {IMAGE}.")
    assert "gpu-pipelines/steps" not in json.dumps(spec)


def test_what_can_be_begun_again_is_after_an_error_of_the_service() -> None:
    tasks = spec_of()["root"]["dag"]["tasks"]
    retries = {name: task.get("retryPolicy", {}).get("maxRetryCount", 0) for name, task in tasks.items()}
    assert retries == {
        "check-request": 0,
        "prepare-data": 2,
        "train-model": 1,
        "evaluate-checkpoints": 2,
        "upload-model": 2,
    }
    assert tasks["prepare-data"]["retryPolicy"]["backoffDuration"] == "60s"
    limited = spec_of(hours=5)["root"]["dag"]["tasks"]
    assert "retryPolicy" not in limited["train-model"], "the hours are those of all attempts"


def test_no_cache_answers_for_what_has_to_be_looked_at() -> None:
    for pipeline in (name for name in PIPELINES if name != ALONE):
        spec = spec_of(pipeline)
        job = pipeline_job(spec, {}, ProjectSettings("p", "us-central1", "gs://b/r"), cache=True)
        dags = [
            part["dag"]["tasks"]
            for part in (job["pipelineSpec"]["root"], *job["pipelineSpec"]["components"].values())
            if "dag" in part
        ]
        kept = {name: task["cachingOptions"]["enableCache"] for tasks in dags for name, task in tasks.items()}
        assert not any(kept[name] for name in ("check-request", "check-for-new-data") if name in kept)
        assert kept["prepare-data"]
        (looked,) = [tasks["check-request"] for tasks in dags if "check-request" in tasks]
        # Whoever lets the service keep everything gets no answer of another run: its name is an input.
        assert looked["inputs"]["parameters"]["run_name"] == {
            "runtimeValue": {"constant": "{{$.pipeline_job_resource_name}}"}
        }


def submitted(api: VertexApi, folder: Path, *given: str) -> Finished:
    return command(api, folder, "run", "--target", "vertex", "-p", "source=gs://example-bucket/texts", *given)


def test_a_published_file_takes_every_parameter_by_its_own_name(vertex_api: VertexApi, tmp_path: Path) -> None:
    file = tmp_path / "causal_lm.yaml"
    file.write_text(VertexTarget().text_of(PIPELINE, plan("l4:1"), task="causal_lm"))
    put_texts(vertex_api)
    done = submitted(vertex_api, tmp_path, str(file), "-p", "packing=false", "-p", "keep_last=3", "--dry-run")
    assert done.status == 0, done.err
    values = json.loads(done.out)["body"]["runtimeConfig"]["parameterValues"]
    assert values["advanced"] == {"keep_last": 3, "packing": False}
    assert values["steps_image"] == "us-docker.pkg.dev/example-project/images/steps:0.1.0"
    # The metric is one of the file's task, which is no parameter any more.
    refused = submitted(vertex_api, tmp_path, str(file), "-p", "gates=accuracy>=0.9")
    assert refused.status == 2
    assert "no metric 'accuracy'" in refused.err
    assert submitted(vertex_api, tmp_path, str(file), "-p", "gates=loss<=9", "--dry-run").status == 0
    unknown = submitted(vertex_api, tmp_path, str(file), "-p", 'advanced={"paking": false}')
    assert unknown.status == 2
    assert "There is no parameter 'paking'. Did you mean 'packing'?" in unknown.err


@pytest.mark.parametrize(
    ("target", "image", "said"),
    [
        ("vertex", "", "Its steps run in the image that the parameter steps_image names, which has to be given."),
        ("vertex", IMAGE, f"Its steps run in {IMAGE}."),
        ("kubeflow", "", "Its steps run in gpu-pipelines/steps:0.1.0, which stands for an image of your own"),
    ],
)
def test_compile_says_which_image_a_file_needs(
    vertex_api: VertexApi, tmp_path: Path, target: str, image: str, said: str
) -> None:
    (tmp_path / "gpu-pipelines.yaml").write_text("{}\n")
    words = ["compile", PIPELINE, "--target", target, "--accelerator", "l4:1", "--task", "text_classification"]
    done = command(vertex_api, tmp_path, *words, *(["--image", image] if image else []))
    assert done.status == 0, done.err
    assert said in done.out
    assert ("give --image" in done.out) == (not image)
    text = (tmp_path / f"{PIPELINE}.yaml").read_text()
    assert said in documents_of(text)[0]["pipelineInfo"]["description"]

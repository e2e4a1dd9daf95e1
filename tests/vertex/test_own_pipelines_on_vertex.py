"""A pipeline of somebody's on Vertex AI: uploaded, scheduled, sent, and run there as the service runs it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import set_variables
from vertex_commands import command, put_texts

if TYPE_CHECKING:
    from conftest import Finished

    from gpu_pipelines.emulator.vertex_api import VertexApi

OWN = Path(__file__).parents[1] / "own_pipelines/mine.py"
MINE = f"{OWN}:mine"
FLAGS = ("--target", "vertex", "--accelerator", "l4:1")


def test_it_is_uploaded_scheduled_and_sent_as_it_was_placed(vertex_api: VertexApi, tmp_path: Path) -> None:
    vertex = partial(command, vertex_api, tmp_path)
    done = vertex("upload", MINE, *FLAGS)
    assert done.status == 0, done.err
    assert "uploaded mine" in done.out
    done = vertex("schedule", "create", "mine", "--name", "nightly", "--cron", "0 3 * * *", "-p", "steps=7")
    assert done.status == 0, done.err
    done = vertex("schedule", "create", f"{OWN}:seeds", "--name", "of-a-file", "--cron", "0 4 * * *")
    assert "train-model has no accelerator" in done.err
    done = vertex("schedule", "create", f"{OWN}:seeds", "--name", "of-a-file", "--cron", "0 4 * * *", *FLAGS)
    assert done.status == 0, done.err
    assert {each.display_name for each in vertex_api.state.schedules.schedules.values()} == {"nightly", "of-a-file"}
    done = vertex("schedule", "create", "mine", "--name", "other", "--cron", "0 3 * * *", *FLAGS)
    assert "The uploaded mine is compiled already; --accelerator cannot change it" in done.err
    done = vertex("run", MINE, *FLAGS, "--json")
    assert done.status == 0, done.err
    (job,) = vertex_api.state.pipeline_jobs.jobs.values()
    assert job.pipeline_spec["root"]["dag"]["tasks"]["train-model"]


def test_its_data_in_a_bucket_is_looked_at_before_it_is_sent(vertex_api: VertexApi, tmp_path: Path) -> None:
    put_texts(vertex_api)
    data = ("-p", "task=text_classification", "-p", "model=bert-micro", "-p", "source=gs://example-bucket/texts")
    done = command(vertex_api, tmp_path, "run", MINE, *FLAGS, *data, "--json")
    assert done.status == 0, done.err
    vertex_api.storage.put("texts/1.jsonl", b'{"body": "one", "label": "a"}\n')
    done = command(vertex_api, tmp_path, "run", MINE, *FLAGS, *data)
    assert done.status == 2
    assert "has no column 'text'; it has body, label." in done.err
    wanted = ("schedule", "create", MINE, "--name", "nightly", "--cron", "0 3 * * *")
    done = command(vertex_api, tmp_path, *wanted, *FLAGS, *data)
    assert done.status == 0, done.err
    assert "warning: as things are now, each run will fail: " in done.err
    assert len(vertex_api.state.pipeline_jobs.jobs) == 1


UPLOADING = """
from kfp import dsl
from gpu_pipelines.components import evaluate_checkpoints, prepare_data, train_model, upload_model
@dsl.pipeline
def uploading(registry: str):
    data = prepare_data(source="sample:digits")
    training = train_model(dataset=data.outputs["dataset"])
    evaluation = evaluate_checkpoints(dataset=data.outputs["dataset"], checkpoints=training.outputs["checkpoints"])
    best, passed = evaluation.outputs["best_checkpoint"], evaluation.outputs["passed"]
    upload_model(best_checkpoint=best, passed=passed, registry=registry, model_name="m")
"""


def test_the_registry_of_its_models_is_looked_at_before_it_is_sent(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    (tmp_path / "uploading.py").write_text(UPLOADING)

    def sent(registry: str) -> Finished:
        return command(vertex_api, tmp_path, "run", "uploading.py", *FLAGS, "-p", f"registry={registry}", "--json")

    vertex_api.fail_next("GET .*/models(\\?|$)", 404, message="There is no such project.")
    wrong = sent("vertex://other/us-central1")
    assert wrong.status == 2
    assert "There is no such project." in wrong.err
    assert not vertex_api.state.pipeline_jobs.jobs
    vertex_api.fail_next("GET .*/models(\\?|$)", 404, message="There is no such project.")
    wanted = ("schedule", "create", "uploading.py", "--name", "nightly", "--cron", "0 3 * * *")
    later = command(vertex_api, tmp_path, *wanted, *FLAGS, "-p", "registry=vertex://other/us-central1")
    assert later.status == 0, later.err
    (warning,) = (line for line in later.err.splitlines() if line.startswith("warning: "))
    assert "There is no such project." in warning
    assert "data" not in warning
    unseen = sent("mlflow:http://127.0.0.1:9")
    assert unseen.status == 0, "it may be seen from the run alone"
    assert "note: Listing the models of the registry in mlflow:http://127.0.0.1:9 failed" in unseen.err
    assert sent("vertex://").status == 0
    assert len(vertex_api.state.pipeline_jobs.jobs) == 2


COLLECTING = """
from kfp import dsl
@dsl.component(base_image="python:3.11", install_kfp_package=False)
def one(number: int, out: dsl.Output[dsl.Artifact]): ...
@dsl.component(base_image="python:3.11", install_kfp_package=False)
def together(ones: dsl.Input[list[dsl.Artifact]]): ...
@dsl.pipeline
def collecting(numbers: list = [1, 2]):
    with dsl.ParallelFor(list(range(MOST))) as number:
        each = one(number=number)
    together(ones=dsl.Collected(each.output))
    with dsl.ParallelFor(list(range(50))), dsl.ParallelFor([1, MORE]) as number:
        each = one(number=number)
    together(ones=dsl.Collected(each.output))
    with dsl.ParallelFor(numbers) as number:
        each = one(number=number)
    together(ones=dsl.Collected(each.output))
"""


@pytest.mark.parametrize(
    ("most", "more", "said"),
    [
        ("100", "2", []),
        ("101", "2", ["together takes 101 artifacts of a loop as its ones"]),
        ("100", "2, 3", ["together-2 takes 150 artifacts of a loop as its ones"]),
    ],
)
def test_more_artifacts_of_a_loop_than_vertex_takes_are_warned_of(
    vertex_api: VertexApi, tmp_path: Path, most: str, more: str, said: list[str]
) -> None:
    (tmp_path / "collecting.py").write_text(COLLECTING.replace("MOST", most).replace("MORE", more))
    for wanted in (("run", "collecting.py", "--dry-run"), ("compile", "collecting.py", "-o", "collecting.yaml")):
        done = command(vertex_api, tmp_path, *wanted, "--target", "vertex")
        assert done.status == 0, done.err
        warnings = [line for line in done.err.splitlines() if "artifacts of a loop" in line]
        assert len(warnings) == len(said)
        assert all(each in line for each, line in zip(said, warnings, strict=True))


OF_GCPC = """
from google_cloud_pipeline_components.v1.custom_job import CustomTrainingJobOp
from kfp import dsl
def pool(machine, gpu, replicas, data):
    spec = {"machine_type": machine, "accelerator_type": gpu, "accelerator_count": 1}
    container = {"image_uri": "image", "args": ["--data", data]}
    return [{"machine_spec": spec, "replica_count": replicas, "container_spec": container}]
@dsl.pipeline
def theirs(data: str = "gs://bucket/data", machine: str = "n1-standard-8", replicas: int = 1):
    first = pool("n1-standard-8", "GPU", 1, data)
    CustomTrainingJobOp(display_name="a", location="europe-west4", worker_pool_specs=first)
    CustomTrainingJobOp(display_name="b", worker_pool_specs=pool(machine, "NVIDIA_TESLA_T4", 1, data))
    CustomTrainingJobOp(display_name="c", worker_pool_specs=pool("n1-standard-8", "NVIDIA_TESLA_T4", replicas, data))
"""


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ("NVIDIA_TESLA_V100", "custom-training-job: 1 × n1-standard-8 with 1 × NVIDIA_TESLA_V100, about $"),
        ("NVIDIA_TESLA_V100", " an hour (on demand, europe-west4; "),
        ("NVIDIA_TESLA_K80", "error: custom-training-job: k80 (K80) is gone"),
        ("NVIDIA_L4", "error: custom-training-job: n1-standard-8 does not carry l4"),
        ("TPU_V3", ""),
    ],
)
def test_the_machines_of_gcpcs_jobs_are_checked_and_priced(
    vertex_api: VertexApi, tmp_path: Path, gpu: str, said: str
) -> None:
    (tmp_path / "theirs.py").write_text(OF_GCPC.replace("GPU", gpu))
    done = command(vertex_api, tmp_path, "run", "theirs.py", "--target", "vertex", "--dry-run")
    assert done.status == (2 if said.startswith("error") else 0)
    assert said in done.err


OTHERS_OF_GCPC = """
from google_cloud_pipeline_components.types.artifact_types import VertexModel
from google_cloud_pipeline_components.v1.batch_predict_job import ModelBatchPredictOp
from google_cloud_pipeline_components.v1 import custom_job
from google_cloud_pipeline_components.v1.endpoint import EndpointCreateOp, ModelDeployOp
from kfp import dsl
@dsl.component(base_image="python:3.11", install_kfp_package=False)
def work(): ...
@dsl.component(base_image="python:3.11", install_kfp_package=False)
def chosen() -> dict: ...
@dsl.pipeline
def theirs(many: int = 2, machine: str = "n1-standrd-4"):
    model = dsl.importer(artifact_uri="gs://bucket/model", artifact_class=VertexModel).output
    THEIRS
"""
_WRAPPED = "custom_job.create_custom_training_job_from_component(work, machine_type=MACHINE)()"
_PREDICTING = (
    'ModelBatchPredictOp(job_display_name="b", model=model, machine_type="g2-standard-8", '
    'accelerator_type="NVIDIA_L4", accelerator_count=COUNT)'
)
_DEPLOYING = (
    'ModelDeployOp(model=model, endpoint=EndpointCreateOp(display_name="e").outputs["endpoint"], '
    'dedicated_resources_machine_type="n1-standard-8", dedicated_resources_accelerator_type=GPU, '
    "dedicated_resources_accelerator_count=1)"
)
_COUNTED = (
    'custom_job.CustomTrainingJobOp(display_name="a", worker_pool_specs=[{"machine_spec": {"machine_type": '
    '"n1-standard-8", "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": COUNT}, "replica_count": COUNT}])'
)
_WHOLE = 'custom_job.CustomTrainingJobOp(display_name="a", worker_pool_specs=[{"machine_spec": MACHINE}])'


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (_WRAPPED.replace("MACHINE", '"a2-highgpu-1g", accelerator_type="NVIDIA_L4"'), "error: work: a2-highgpu-1g do"),
        (_WRAPPED.replace("MACHINE", '"n1-standrd-4"'), "warning: work: 'n1-standrd-4' is not known as a machine"),
        (_WRAPPED.replace("MACHINE", '"n1-standard-4"'), ""),
        (_PREDICTING.replace("COUNT", "2"), "error: model-batch-predict: g2-standard-8 carries 1 × l4"),
        (_PREDICTING.replace("COUNT", "many"), ""),
        (_DEPLOYING.replace("GPU", '"NVIDIA_L44"'), "error: model-deploy: There is no GPU 'NVIDIA_L44'"),
        (_DEPLOYING.replace("GPU", '"NVIDIA_TESLA_T4"').replace("n1-standard-8", "n1-standard-2"), ""),
        (_COUNTED.replace("COUNT", '"two"'), "accelerator_count in worker_pool_specs is the text 'two'."),
        (_COUNTED.replace("COUNT", "many"), ""),
        (_WHOLE.replace("MACHINE", '"n1-standard-8"'), "machine_spec in worker_pool_specs is 'n1-standard-8'."),
        (_WHOLE.replace("MACHINE", "chosen().output"), ""),
        (_COUNTED.replace("NVIDIA_TESLA_T4", "BANANA").replace("COUNT", "1"), "There is no GPU 'BANANA'"),
    ],
)
def test_machines_of_gcpcs_components_are_checked_by_each_command(
    vertex_api: VertexApi, tmp_path: Path, step: str, said: str
) -> None:
    """A file was compiled with them, and uploaded by hand; the texts and the names failed in the run."""
    (tmp_path / "theirs.py").write_text(OTHERS_OF_GCPC.replace("THEIRS", step))
    for wanted in (("run", "theirs.py", "--dry-run"), ("compile", "theirs.py", "-o", "theirs.yaml")):
        done = command(vertex_api, tmp_path, *wanted, "--target", "vertex")
        assert done.status == (0 if said.startswith("warning") or not said else 2), done.err
        assert said in done.err


def test_names_of_gcloud_in_a_job_of_gcpc_are_refused(vertex_api: VertexApi, tmp_path: Path) -> None:
    """GCPC's launcher refused them in the run: `Unknown field for WorkerPoolSpec: machineSpec`."""
    (tmp_path / "theirs.py").write_text(OF_GCPC.replace('"machine_spec":', '"machineSpec":'))
    done = command(vertex_api, tmp_path, "run", "theirs.py", "--target", "vertex", "--dry-run")
    assert done.status == 2
    assert "custom-training-job: worker_pool_specs has machineSpec. Its names are those of Python: machine_" in done.err


OF_KFP = """
from kfp import dsl
@dsl.component(install_kfp_package=False)
def work() -> None: ...
@dsl.pipeline
def theirs(gpu: str = "NVIDIA_TESLA_T4"):
    work().set_accelerator_type("GPU").set_accelerator_limit(COUNT)
    work().set_accelerator_type(gpu).set_accelerator_limit(3)
"""


@pytest.mark.parametrize(
    ("gpu", "count", "said"),
    [
        ("NVIDIA_TESLA_T4", 2, ""),
        ("nvidia.com/gpu", 3, ""),
        ("NVIDIA_TESLA_T4", 3, "error: work: No machine has 3 × t4"),
        ("NVIDIA_TESLA_K80", 1, "error: work: k80 (K80) is gone"),
        ("NVIDIA_L44", 1, "error: work: There is no GPU 'NVIDIA_L44'"),
    ],
)
def test_gpus_by_kfps_own_means_are_checked(
    vertex_api: VertexApi, tmp_path: Path, gpu: str, count: int, said: str
) -> None:
    (tmp_path / "theirs.py").write_text(OF_KFP.replace("GPU", gpu).replace("COUNT", str(count)))
    done = command(vertex_api, tmp_path, "run", "theirs.py", "--target", "vertex", "--dry-run")
    assert done.err.startswith(said)
    assert done.status == (2 if said else 0)


@pytest.mark.slow
def test_it_runs_there_from_the_data_to_the_registry(
    vertex_api: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, vertex_api.environment())
    from gpu_pipelines.emulator.running.pipelines import PipelineBackend

    done = command(vertex_api, tmp_path, "run", MINE, *FLAGS, "-p", "steps=2", "--json")
    assert done.status == 0, done.err
    (job,) = vertex_api.state.pipeline_jobs.jobs.values()
    PipelineBackend(vertex_api, rehearse="cpu:1").run(job.name)
    job = vertex_api.state.pipeline_jobs.one(job.name)
    assert job.state.name == "PIPELINE_STATE_SUCCEEDED", "\n".join(vertex_api.state.logs.messages()[-60:])
    assert len(vertex_api.state.custom_jobs.jobs) == 3, "count, the training, and the evaluation"
    ((version,),) = vertex_api.state.models.versions.values()
    assert version.display_name == "digits"

"""A search on Vertex AI: what GCPC's launcher is given, and trials and whole pipelines on the emulator."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from conftest import gpu_pipelines
from google.cloud import aiplatform_v1 as api
from google_cloud_pipeline_components.container.v1.gcp_launcher.utils import json_util

from gpu_pipelines.accelerators import plan
from gpu_pipelines.emulator.pipelines.payload import PipelineRun
from gpu_pipelines.project_settings import ProjectSettings
from gpu_pipelines.targets.vertex.placement.job_spec import JobOptions
from gpu_pipelines.targets.vertex.placement.machines import machines_of
from gpu_pipelines.targets.vertex.target import VertexTarget
from gpu_pipelines.tuning.service.documents import StudyDocuments
from gpu_pipelines.tuning.service.vertex_study import parameters_of, stopping_of
from gpu_pipelines.tuning.space import space_in

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

PIPELINE, JOB = "tune_train_evaluate_upload", "hyperparameter-tuning-job"
SPACE = """
learning_rate: {type: float, low: 1e-3, high: 1e-2, log: true}
optimizer: {type: categorical, choices: [adamw, sgd]}
momentum: {type: float, low: 0.5, high: 0.9, when: {optimizer: sgd}}
"""
SETTINGS = ProjectSettings(
    image="us-docker.pkg.dev/p/i/steps:1",
    service_account="trainer@p.iam.gserviceaccount.com",
    network="projects/7/global/networks/training",
    tensorboard="projects/7/locations/us-central1/tensorboards/9",
    labels={"team": "vision"},
)


def compiled_for(spec: str, settings: ProjectSettings = SETTINGS, **others: Any) -> dict[str, Any]:
    options = JobOptions(boot_disk_gb=300, web_access=True)
    planned = plan(spec, region="us-central1", **others)
    return dict(yaml.safe_load(VertexTarget(settings, options).text_of(PIPELINE, planned)))


def job_of(pipeline: dict[str, Any], reduction: int = 3) -> Any:
    """The job that GCPC's launcher asks for, as the API's own message; an unknown or mistyped field raises."""
    from single_tasks import executor_input_of, payload_of

    run = PipelineRun("gs://bucket/root", Path("files"), {"space": SPACE})
    begun = {"parameters": parameters_of(space_in(SPACE)), "algorithm": "ALGORITHM_UNSPECIFIED"}
    begun |= {"early_stopping": stopping_of(reduction), "trials": 8, "parallel_trials": 2}
    inputs = {"parameters": "study_spec_parameters", "algorithm": "study_spec_algorithm"}
    inputs |= {"early_stopping": "study_spec_early_stopping", "parallel_trials": "parallel_trial_count"}
    values: dict[str, Any] = {inputs[name]: value for name, value in begun.items() if name in inputs}
    values |= dict.fromkeys(("max_trial_count", "max_failed_trial_count"), begun["trials"])
    values["pipelinechannel--begin-study-study"] = "gs://bucket/study"
    given = executor_input_of(pipeline, JOB, run, {}, values)
    sent = json.loads(
        payload_of(pipeline, JOB, run, given).replace(
            "{{$.inputs.parameters['pipelinechannel--begin-study-study']}}", "gs://bucket/study"
        )
    )
    return api.HyperparameterTuningJob(json_util.recursive_remove_empty(sent))


def test_a_trial_is_a_job_on_the_machines_of_the_plan() -> None:
    job = job_of(compiled_for("l4:2", nodes=3, strategy="spot"))
    spec = job.trial_job_spec
    assert [pool.replica_count for pool in spec.worker_pool_specs] == [1, 2]
    for pool in spec.worker_pool_specs:
        assert (pool.machine_spec.machine_type, pool.machine_spec.accelerator_count) == ("g2-standard-24", 2)
        assert pool.disk_spec.boot_disk_size_gb == 300
        assert pool.container_spec.image_uri == SETTINGS.image
        assert list(pool.container_spec.command) == ["python3", "-m", "gpu_pipelines.tuning.service.trial"]
        assert list(pool.container_spec.args) == ["--study", "gs://bucket/study"]
        variables = {each.name: each.value for each in pool.container_spec.env}
        assert variables["GPU_PIPELINES_ACCELERATOR"] == "l4:2"
        assert "GPU_PIPELINES_PREEMPTION_HOURS" in variables
    assert spec.scheduling.strategy.name == "SPOT"
    assert spec.scheduling.timeout.total_seconds() == 24 * 3600
    assert spec.scheduling.restart_job_on_worker_restart
    assert (spec.service_account, spec.network) == (SETTINGS.service_account, SETTINGS.network)
    assert (spec.tensorboard, spec.enable_web_access) == (SETTINGS.tensorboard, True)
    assert spec.base_output_directory.output_uri_prefix.startswith("gs://bucket/root/tensorboard/")
    assert dict(job.labels) == {"team": "vision"}


def test_the_study_is_what_the_first_step_says() -> None:
    study = job_of(compiled_for("l4:1")).study_spec
    assert [(each.metric_id, each.goal.name) for each in study.metrics] == [("val_loss", "MINIMIZE")]
    assert [each.parameter_id for each in study.parameters] == ["learning_rate", "optimizer"]
    (below,) = study.parameters[1].conditional_parameter_specs
    assert (below.parameter_spec.parameter_id, list(below.parent_categorical_values.values)) == ("momentum", ["sgd"])
    assert study.measurement_selection_type.name == "BEST_MEASUREMENT"
    assert study.median_automated_stopping_spec.use_elapsed_duration, "GCPC's launcher leaves out what is false"
    job = job_of(compiled_for("l4:1"), reduction=1)
    assert api.StudySpec.pb(job.study_spec).WhichOneof("automated_stopping_spec") is None
    assert (job.max_trial_count, job.parallel_trial_count, job.max_failed_trial_count) == (8, 2, 8)


def test_a_file_says_what_its_trials_run_on_and_the_region_is_that_of_the_run() -> None:
    pipeline = compiled_for("a100:4", strategy="spot", hours=6)
    (tuning,) = [each for each in machines_of(pipeline, "us-central1") if each.step == JOB]
    assert (tuning.plan.spec, tuning.plan.strategy, tuning.plan.hours) == ("a100:4", "spot", 6)
    parameters = pipeline["root"]["dag"]["tasks"][JOB]["inputs"]["parameters"]
    assert parameters["location"]["runtimeValue"]["constant"] == "{{$.pipeline_google_cloud_location}}"
    # Without an image the file has a parameter for it, as others have.
    free = compiled_for("l4:1", replace(SETTINGS, image=None))
    pools = free["root"]["dag"]["tasks"][JOB]["inputs"]["parameters"]["worker_pool_specs"]["runtimeValue"]["constant"]
    assert pools[0]["container_spec"]["image_uri"] == "{{$.inputs.parameters['pipelinechannel--steps_image']}}"
    on_resource = compiled_for("l4:1", replace(SETTINGS, persistent_resource="mine"))
    assert job_of(on_resource).trial_job_spec.persistent_resource_id == "mine"


@pytest.mark.slow
def test_a_trial_whose_machine_is_preempted_goes_on_and_one_that_fails_is_infeasible(
    vertex_emulator: VertexApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "training")
    from trainings import numbers_dataset

    from gpu_pipelines.tuning.service.begin import begin
    from gpu_pipelines.tuning.settings import TuningSettings

    space = "learning_rate: {type: categorical, choices: [0.01, 100000.0]}"
    given = {"model": "mlp-small", "max_steps": 1200, "checkpoint_every_steps": 100, "optimizer": "sgd"}
    settings = TuningSettings(space=space, trials=2, gradient_clip=0.0, **given)
    begin(settings, str(numbers_dataset(tmp_path)), str(tmp_path / "study"), processes=1)
    container = {"imageUri": "i", "command": ["python3", "-m", "gpu_pipelines.tuning.service.trial"]}
    container |= {"args": ["--study", str(tmp_path / "study")]}
    container["env"] = [{"name": "GPU_PIPELINES_ACCELERATOR", "value": "cpu:1"}]
    pool = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": "1", "containerSpec": container}
    study = {"metrics": [{"metricId": "val_loss", "goal": "MINIMIZE"}], "algorithm": "GRID_SEARCH"}
    body = {
        "displayName": "t",
        "maxTrialCount": 2,
        "parallelTrialCount": 1,
        "maxFailedTrialCount": 2,
        "studySpec": {**study, "parameters": parameters_of(settings.search_space())},
        "trialJobSpec": {"workerPoolSpecs": [pool], "scheduling": {"strategy": "SPOT"}},
    }
    parent = "projects/example-project/locations/us-central1"
    job = api.HyperparameterTuningJob.from_json(json.dumps(body))
    jobs, documents = vertex_emulator.state.tuning_jobs, StudyDocuments(str(tmp_path / "study"))
    name = jobs.create(api.CreateHyperparameterTuningJobRequest(parent=parent, hyperparameter_tuning_job=job)).name
    until, preempted = time.monotonic() + 150, False
    while not jobs.one(name).end_time:
        assert time.monotonic() < until
        record = documents.read("records/1.json")
        if record and record["curve"] and not preempted:
            preempted = True
            vertex_emulator.state.replicas.preempt(jobs.one(name).trials[0].custom_job)
        time.sleep(0.05)
    ended = jobs.one(name)
    assert ended.state.name == "JOB_STATE_SUCCEEDED", ended.error.message
    assert [trial.state.name for trial in ended.trials] == ["SUCCEEDED", "INFEASIBLE"]
    first, second = (documents.read(f"records/{number}.json") for number in (1, 2))
    assert first is not None
    assert second is not None
    assert (first["outcome"], second["outcome"]) == ("whole", "unfit")
    log = "\n".join(vertex_emulator.state.logs.messages())
    assert "was preempted" in log
    assert "interrupted" in log
    assert [measured.step_count for measured in ended.trials[0].measurements] == list(range(100, 1300, 100))


@pytest.mark.slow
def test_the_pipeline_searches_on_the_emulator_and_uploads_the_best_model(tmp_path: Path) -> None:
    machine = ("--accelerator", "l4:1", "--image", "us-docker.pkg.dev/example-project/images/steps:0.1.0")
    (tmp_path / "space.yaml").write_text(SPACE)
    search = ("--space", "space.yaml", "--trials", "2", "--parallel", "2", "-p", "longer=2", "-p", "max_steps=12")
    others = ("-p", "smoke_test=false", "-p", 'gates=["accuracy>=0"]', "--json")
    done = gpu_pipelines("run", PIPELINE, "--target", "vertex", "--emulate", *machine, *search, *others, cwd=tmp_path)
    assert done.status == 0, done.err
    document = json.loads(done.out)
    assert document["state"] == "succeeded"
    (result,) = (tmp_path / "runs").glob("*/emulator/gcs/example-bucket/runs/checkpoints/*/result.json")
    found = json.loads(result.read_text())
    assert (len(found["trials"]), found["ended_by"]) == (2, "trials")
    assert found["checkpoints"].endswith(f"winner-{found['best']}-24/checkpoints")
    (page,) = [path for path in document["reports"] if Path(path).name.startswith("finish-study")]
    assert f"Trial {found['best']} has the lowest loss on val" in Path(page).read_text()
    assert [path for path in document["reports"] if "evaluate-checkpoints" in path]

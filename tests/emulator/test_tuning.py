"""Hyperparameter tuning jobs whose trials run: their parameters, their metrics, how many at a time, and their ends."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import set_variables
from rehearsed_jobs import PARENT, pool

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator

if TYPE_CHECKING:
    from gpu_pipelines.emulator.certificates import Certificates
    from gpu_pipelines.emulator.vertex_api import VertexApi

#: What cloudml-hypertune writes for each call of report_hyperparameter_tuning_metric.
REPORTS = """
import json, os, sys, time
given = dict(argument.removeprefix("--").split("=") for argument in sys.argv[1:])
cluster = json.loads(os.environ["CLUSTER_SPEC"])
print(json.dumps([given, cluster["task"]["trial"], os.environ.get("AIP_MODEL_DIR", "")]), flush=True)
if given["size"] == "7":
    sys.exit(3)
with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w") as file:
    for step in (1, 2):
        value = (float(given["rate"]) - 0.1) ** 2 + 1 / step
        told = {"timestamp": time.time(), "trial": os.environ["CLOUD_ML_TRIAL_ID"], "loss": str(value)}
        file.write(json.dumps({**told, "global_step": str(step), "checkpoint_path": ""}) + "\\n")
"""
RATE = {"parameterId": "rate", "doubleValueSpec": {"minValue": 0.001, "maxValue": 1.0}, "scaleType": "UNIT_LOG_SCALE"}
SIZE = {"parameterId": "size", "discreteValueSpec": {"values": [4, 8]}}
METRICS = [{"metricId": "loss", "goal": "MINIMIZE"}]


def tuning(*parameters: dict[str, Any], trials: int = 4, **more: Any) -> Any:
    from google.cloud import aiplatform_v1 as api

    study = {"metrics": METRICS, "parameters": list(parameters), **more.pop("study", {})}
    spec = {"workerPoolSpecs": [pool("python", "-c", REPORTS)], **more.pop("spec", {})}
    body = {"displayName": "t", "maxTrialCount": trials, "parallelTrialCount": 2, "studySpec": study}
    job = api.HyperparameterTuningJob.from_json(json.dumps({**body, "trialJobSpec": spec, **more}))
    return api.CreateHyperparameterTuningJobRequest(parent=PARENT, hyperparameter_tuning_job=job)


def finished(emulator: VertexApi, request: Any) -> Any:
    jobs = emulator.state.tuning_jobs
    name = jobs.create(request).name
    until = time.monotonic() + 60
    while not jobs.one(name).end_time:
        assert time.monotonic() < until
        time.sleep(0.05)
    return jobs.one(name)


def told(emulator: VertexApi) -> list[Any]:
    return [json.loads(line) for line in emulator.state.logs.messages() if line.startswith("[")]


def test_a_trial_is_a_job_with_its_parameters_as_arguments_and_its_last_metric_counts(
    vertex_emulator: VertexApi,
) -> None:
    place = {"baseOutputDirectory": {"outputUriPrefix": "gs://example-bucket/tuned/"}}
    job = finished(vertex_emulator, tuning(RATE, SIZE, spec=place))
    assert job.state.name == "JOB_STATE_SUCCEEDED", job.error.message
    assert [trial.id for trial in job.trials] == ["1", "2", "3", "4"]
    heard = {trial: (given, place) for given, trial, place in told(vertex_emulator)}
    for trial in job.trials:
        given, model = heard[trial.id]
        values = {each.parameter_id: each.value for each in trial.parameters}
        assert trial.state.name == "SUCCEEDED"
        assert 0.001 <= values["rate"] <= 1
        assert (float(given["rate"]), given["size"]) == (values["rate"], str(int(values["size"])))
        assert model == f"gs://example-bucket/tuned/{trial.id}/model/"
        assert [measurement.step_count for measurement in trial.measurements] == [1, 2]
        assert trial.final_measurement.metrics[0].value == pytest.approx((values["rate"] - 0.1) ** 2 + 0.5)
        assert trial.custom_job in vertex_emulator.state.custom_jobs.jobs


def rates(folder: Path, certificates: Certificates, seed: int) -> list[float]:
    with running_emulator(EmulatorSettings(state=folder, certificates=certificates, seed=seed)) as emulator:
        trials = finished(emulator, tuning(RATE, SIZE, trials=3)).trials
    return [trial.parameters[0].value for trial in trials]


def test_values_are_the_same_with_the_same_seed(tmp_path: Path, vertex_certificates: Certificates) -> None:
    first, again, other = (rates(tmp_path / str(n), vertex_certificates, seed) for n, seed in enumerate((1, 1, 2)))
    assert first == again != other


def test_a_grid_has_each_value_with_each_and_ends_with_them(vertex_emulator: VertexApi) -> None:
    letters = {"parameterId": "kind", "categoricalValueSpec": {"values": ["a", "b"]}}
    rate = {"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 0.3}}
    job = finished(vertex_emulator, tuning(letters, SIZE, rate, trials=8, study={"algorithm": "GRID_SEARCH"}))
    found = {tuple(each.value for each in trial.parameters) for trial in job.trials}
    assert found == {(kind, size, rate) for kind in "ab" for size in (4.0, 8.0) for rate in (0.1, 0.3)}


def test_a_trial_that_fails_is_infeasible_and_too_many_fail_the_job(vertex_emulator: VertexApi) -> None:
    some = {"parameterId": "size", "discreteValueSpec": {"values": [4, 7]}}
    grid = {"algorithm": "GRID_SEARCH"}
    job = finished(vertex_emulator, tuning(RATE, some, study=grid))
    assert job.state.name == "JOB_STATE_SUCCEEDED"
    assert sorted(trial.state.name for trial in job.trials) == ["INFEASIBLE"] * 2 + ["SUCCEEDED"] * 2
    assert any("non-zero status of 3" in trial.infeasible_reason for trial in job.trials)
    failed = finished(vertex_emulator, tuning(RATE, some, study=grid, maxFailedTrialCount=1))
    assert failed.state.name == "JOB_STATE_FAILED"
    assert "Too many trials failed" in failed.error.message


def test_so_many_trials_run_at_a_time_and_cancelling_ends_them(vertex_emulator: VertexApi) -> None:
    from google.cloud import aiplatform_v1 as api

    jobs, custom_jobs = vertex_emulator.state.tuning_jobs, vertex_emulator.state.custom_jobs
    name = jobs.create(tuning(RATE, SIZE, spec={"workerPoolSpecs": [pool("sleep", "60")]})).name
    until = time.monotonic() + 20
    while [job.state.name for job in custom_jobs.jobs.values()] != ["JOB_STATE_RUNNING"] * 2:
        assert time.monotonic() < until
        time.sleep(0.02)
    jobs.cancel(api.CancelHyperparameterTuningJobRequest(name=name))
    while jobs.one(name).state.name != "JOB_STATE_CANCELLED":
        assert time.monotonic() < until
        time.sleep(0.02)
    assert {job.state.name for job in custom_jobs.jobs.values()} == {"JOB_STATE_CANCELLED"}
    assert len(custom_jobs.jobs) == 2


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        ({"study": {"algorithm": "RANDOM_SEARCH", "parameters": [{"parameterId": "a"}]}}, 400, "a has no values"),
        ({"study": {"parameters": [{**RATE, "doubleValueSpec": {"minValue": 2, "maxValue": 1}}]}}, 400, "minimum over"),
        ({"study": {"decayCurveStoppingSpec": {}}}, 501, "no early stopping (decay_curve_stopping_spec)"),
        ({"trials": 0}, 400, "at least one trial"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused(
    vertex_emulator: VertexApi, changed: dict[str, Any], code: int, message: str
) -> None:
    with pytest.raises(ApiError) as caught:
        vertex_emulator.state.tuning_jobs.create(tuning(RATE, **changed))
    assert caught.value.code == code
    assert message in caught.value.message
    assert vertex_emulator.state.tuning_jobs.jobs == {}


def test_the_sdk_runs_one_and_reads_its_trials(vertex_emulator: VertexApi, monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, vertex_emulator.environment())
    from google.cloud import aiplatform
    from google.cloud.aiplatform import hyperparameter_tuning as values

    monkeypatch.setattr("google.cloud.aiplatform.jobs._JOB_WAIT_TIME", 0.2, raising=False)
    aiplatform.init(project="example-project", location="us-central1", staging_bucket="gs://example-bucket/root")
    machine = {"machine_type": "n1-standard-4"}
    replica = {"image_uri": "i", "command": ["python", "-c", REPORTS]}
    trial = aiplatform.CustomJob("trial", [{"machine_spec": machine, "replica_count": 1, "container_spec": replica}])
    job = aiplatform.HyperparameterTuningJob(
        "tuned",
        trial,
        metric_spec={"loss": "minimize"},
        parameter_spec={
            "rate": values.DoubleParameterSpec(min=0.001, max=1, scale="log"),
            "size": values.DiscreteParameterSpec(values=[4, 8], scale=None),
        },
        max_trial_count=2,
        parallel_trial_count=2,
    )
    job.run(sync=True)
    assert [trial.id for trial in job.trials] == ["1", "2"]
    assert all(trial.final_measurement.metrics[0].metric_id == "loss" for trial in job.trials)
    (listed,) = aiplatform.HyperparameterTuningJob.list()
    assert listed.display_name == "tuned"
    listed.delete()
    assert vertex_emulator.state.tuning_jobs.jobs == {}

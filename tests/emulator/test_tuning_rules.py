"""What ends a trial early on the emulator, and parameters that count only with a value of another."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from rehearsed_jobs import PARENT, pool

from gpu_pipelines.emulator.api_error import ApiError

if TYPE_CHECKING:
    from gpu_pipelines.emulator.vertex_api import VertexApi

#: Reports a loss that is the trial's own three times, a quarter of a second apart, and waits where it is a bad one.
REPORTS = """
import json, os, sys, time
given = dict(argument.removeprefix("--").split("=") for argument in sys.argv[1:])
print(json.dumps(given), flush=True)
lines = []
for step in (1, 2, 3):
    time.sleep(0.25)
    value = float(given["level"])
    lines.append(json.dumps({"timestamp": time.time(), "loss": str(value), "global_step": str(step)}) + "\\n")
    open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w").write("".join(lines))
    if value > 4:
        time.sleep(60 if step == 2 else 0)
"""
LEVEL = {"parameterId": "level", "discreteValueSpec": {"values": [1, 2, 3, 9]}}


def finished(emulator: VertexApi, *parameters: dict[str, Any], **study: Any) -> Any:
    from google.cloud import aiplatform_v1 as api

    described = {"metrics": [{"metricId": "loss", "goal": "MINIMIZE"}], "parameters": list(parameters), **study}
    body = {"displayName": "t", "maxTrialCount": 4, "parallelTrialCount": 1, "studySpec": described}
    body["trialJobSpec"] = {"workerPoolSpecs": [pool("python", "-c", REPORTS)]}
    job = api.HyperparameterTuningJob.from_json(json.dumps(body))
    jobs = emulator.state.tuning_jobs
    name = jobs.create(api.CreateHyperparameterTuningJobRequest(parent=PARENT, hyperparameter_tuning_job=job)).name
    until = time.monotonic() + 40
    while not jobs.one(name).end_time:
        assert time.monotonic() < until
        time.sleep(0.05)
    return jobs.one(name)


@pytest.mark.slow_but_for("True")
@pytest.mark.parametrize("by_time", [False, True])
def test_a_trial_that_is_worse_than_the_median_of_the_others_ends_early(
    vertex_emulator: VertexApi, by_time: bool
) -> None:
    rule = {"useElapsedDuration": by_time}
    job = finished(vertex_emulator, LEVEL, algorithm="GRID_SEARCH", medianAutomatedStoppingSpec=rule)
    assert job.state.name == "JOB_STATE_SUCCEEDED", job.error.message
    found = {trial.parameters[0].value: trial for trial in job.trials}
    jobs = vertex_emulator.state.custom_jobs.jobs
    assert {trial.state.name for trial in job.trials} == {"SUCCEEDED"}, "a trial that was stopped has its loss"
    assert [jobs[found[level].custom_job].state.name for level in (1, 9)] == [
        "JOB_STATE_SUCCEEDED",
        "JOB_STATE_CANCELLED",
    ]
    assert [len(found[level].measurements) < 3 for level in (1, 9)] == [False, True]
    assert found[9].final_measurement.metrics[0].value == 9
    moments = [each.elapsed_duration.total_seconds() for each in found[1].measurements]
    assert 0.2 < moments[0] < moments[1] < moments[2] < 20


def test_a_parameter_with_a_condition_is_there_with_that_value_alone(vertex_emulator: VertexApi) -> None:
    below = {"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 0.2}}
    condition = {"parentDiscreteValues": {"values": [1]}, "parameterSpec": below}
    level = {**LEVEL, "discreteValueSpec": {"values": [1, 2, 3]}, "conditionalParameterSpecs": [condition]}
    job = finished(vertex_emulator, level, algorithm="RANDOM_SEARCH")
    told = [json.loads(line) for line in vertex_emulator.state.logs.messages() if line.startswith("{")]
    assert len(told) == 4
    assert len({each["level"] for each in told}) > 1
    for given in told:
        assert ("rate" in given) == (given["level"] == "1")
    assert {len(trial.parameters) for trial in job.trials} == {1, 2}


def test_there_is_no_grid_of_conditions(vertex_emulator: VertexApi) -> None:
    below = {"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 0.2}}
    condition = {"parentDiscreteValues": {"values": [1]}, "parameterSpec": below}
    with pytest.raises(ApiError, match="makes no grid"):
        finished(vertex_emulator, {**LEVEL, "conditionalParameterSpecs": [condition]}, algorithm="GRID_SEARCH")
    nothing = {"parentDiscreteValues": {"values": [1]}, "parameterSpec": {"parameterId": "rate"}}
    with pytest.raises(ApiError, match="rate has no values"):
        finished(vertex_emulator, {**LEVEL, "conditionalParameterSpecs": [nothing]}, algorithm="RANDOM_SEARCH")

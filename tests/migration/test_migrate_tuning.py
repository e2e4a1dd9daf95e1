"""Hyperparameters of old jobs as studies of Vertex AI."""

from __future__ import annotations

from typing import Any

import pytest
from old_jobs import custom, migrated, refusal, texts

from gpu_pipelines.migration.tuning import DEFAULT_METRIC

RATE = {"parameterName": "rate", "type": "DOUBLE", "minValue": 0.1, "maxValue": 0.5}
LAYERS = {"parameterName": "layers", "type": "INTEGER", "minValue": "1", "maxValue": "8", "scaleType": "NONE"}


def tuned(*parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return custom(hyperparameters={"params": list(parameters), **more})


def test_a_study_has_the_defaults_that_the_old_service_had() -> None:
    found = migrated(tuned(RATE, LAYERS), "my_search")
    assert found.is_tuning
    assert found.config["displayName"] == "my_search"
    assert found.config["studySpec"] == {
        "metrics": [{"metricId": DEFAULT_METRIC, "goal": "MAXIMIZE"}],
        "parameters": [
            {"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 0.5}},
            {"parameterId": "layers", "integerValueSpec": {"minValue": 1, "maxValue": 8}},
        ],
    }
    assert (found.config["maxTrialCount"], found.config["parallelTrialCount"]) == (1, 1)
    assert "maxFailedTrialCount" not in found.config
    assert found.config["trialJobSpec"] == migrated(custom()).config
    assert found.gcloud_command("f").startswith("gcloud ai hp-tuning-jobs create --region=us-central1")
    assert found.own_command("f") is None
    assert "cloudml-hypertune" in texts(found, "changed", "hyperparameters")


def test_no_folder_among_the_args_is_advised_which_all_trials_would_write_to() -> None:
    job = {"jobDir": "gs://bucket/out", "hyperparameters": {"params": [RATE]}}
    said = texts(migrated(custom(**job)), "changed", "jobDir")
    assert "AIP_MODEL_DIR" in said
    assert "--job-dir=gs://bucket/out" not in said
    assert "one folder for all trials" in said
    assert "--job-dir=gs://bucket/out" in texts(migrated(custom(jobDir="gs://bucket/out")), "changed", "jobDir")


def test_what_vertex_ai_does_not_have_is_dropped_and_said() -> None:
    found = migrated(tuned(RATE, algorithm="POPULATION_BASED_TRAINING", resumePreviousJobId="old", maxFailedTrials=3))
    assert "algorithm" not in found.config["studySpec"]
    assert found.config["maxFailedTrialCount"] == 3
    minimized = migrated(tuned(RATE, goal="MINIMIZE"))
    assert minimized.config["studySpec"]["metrics"][0]["goal"] == "MINIMIZE"
    assert "Bayesian" in texts(found, "dropped", "algorithm")
    assert texts(found, "dropped", "resumePreviousJobId")


@pytest.mark.parametrize(
    ("parameters", "more", "said"),
    [
        ([], {}, "nothing to tune"),
        ([RATE, RATE], {}, "a name twice"),
        ([{**RATE, "parameterName": "a b"}], {}, "a name without spaces"),
        ([{"type": "DOUBLE"}], {}, "a name without spaces"),
        ([{**RATE, "type": "PARAMETER_TYPE_UNSPECIFIED"}], {}, "needs a type"),
        ([{**RATE, "minValue": 1}], {}, "maxValue that is not below"),
        ([{**RATE, "minValue": None}], {}, "needs minValue"),
        ([{**RATE, "minValue": "inf"}], {}, "takes a number"),
        ([{**LAYERS, "maxValue": 1.5}], {}, "no whole numbers"),
        ([{**LAYERS, "maxValue": 1e19}], {}, "no whole numbers"),
        ([{**RATE, "minValue": 0, "scaleType": "UNIT_LOG_SCALE"}], {}, "above 0 alone"),
        ([{"parameterName": "c", "type": "CATEGORICAL"}], {}, "needs categoricalValues"),
        ([{"parameterName": "d", "type": "DISCRETE", "discreteValues": [2, 1]}], {}, "in increasing order"),
        ([{"parameterName": "d", "type": "DISCRETE", "discreteValues": [1, None]}], {}, "is a null"),
        ([RATE], {"algorithm": "GRID_SEARCH"}, "takes no parameter of the type DOUBLE"),
        ([RATE], {"maxTrials": 0}, "maxTrials is 0"),
        ([RATE], {"hyperparameterMetricTag": "my loss"}, "none with spaces"),
    ],
)
def test_what_no_study_can_have_is_refused(parameters: list[dict[str, Any]], more: dict[str, Any], said: str) -> None:
    assert said in refusal(tuned(*parameters, **more))

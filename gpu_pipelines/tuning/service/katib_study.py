"""A search space in the form of Katib's Experiment, with the names of its API (kubeflow.org/v1beta1).

Katib knows no conditions: it gives a trial a value for each parameter, and the trial leaves out those that do not
count.
"""

from __future__ import annotations

from typing import Any

from gpu_pipelines.tuning.service.study import METRIC, ServiceStudy, in_a_template, is_numeric, listed_values
from gpu_pipelines.tuning.space import Dimension, SearchSpace

#: Losses that a trial must have before it can be stopped, and trials needed for the comparison.
_FIRST_LOSSES, _FEWEST_TRIALS = 2, 3


def search_of(study: ServiceStudy) -> dict[str, Any]:
    """The fields of an Experiment's spec for the search, without the trials.

    Args:
        study: the request.
    """
    asked = study.request
    fields: dict[str, Any] = {
        "objective": {
            "type": "minimize",
            "objectiveMetricName": METRIC,
            # The lowest loss is that of the best checkpoint, which is the result of a trial.
            "metricStrategies": [{"name": METRIC, "value": "min"}],
        },
        "algorithm": {
            "algorithmName": asked.sampler,
            "algorithmSettings": [{"name": "random_state", "value": str(asked.seed)}],
        },
        "parameters": parameters_of(asked.space),
        "maxTrialCount": asked.trials,
        "parallelTrialCount": asked.parallel,
        # A trial whose parameters do not fit should not end the study.
        "maxFailedTrialCount": asked.trials,
        "metricsCollectorSpec": {"collector": {"kind": "StdOut"}},
        "resumePolicy": "Never",
    }
    if asked.reduction > 1:
        settings = {"min_trials_required": _FEWEST_TRIALS, "start_step": _FIRST_LOSSES}
        fields["earlyStopping"] = {
            "algorithmName": "medianstop",
            "algorithmSettings": [{"name": name, "value": str(value)} for name, value in settings.items()],
        }
    return fields


def parameters_of(space: SearchSpace) -> list[dict[str, Any]]:
    """The parameters of an Experiment.

    Args:
        space: the search space.
    """
    return [{"name": each.name, **_values(each)} for each in space.dimensions]


def _values(dimension: Dimension) -> dict[str, Any]:
    if dimension.kind == "categorical":
        kind = "discrete" if is_numeric(dimension.choices) else "categorical"
        return {"parameterType": kind, "feasibleSpace": {"list": [in_a_template(each) for each in dimension.choices]}}
    if dimension.step and not (dimension.kind == "int" and dimension.step == 1):
        return {
            "parameterType": "discrete",
            "feasibleSpace": {"list": [str(value) for value in listed_values(dimension)]},
        }
    ends = {"min": str(dimension.low), "max": str(dimension.high)}
    kind = "int" if dimension.kind == "int" else "double"
    return {
        "parameterType": kind,
        "feasibleSpace": {**ends, **({"distribution": "logUniform"} if dimension.log else {})},
    }

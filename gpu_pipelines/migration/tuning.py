"""Hyperparameter tuning: `hyperparameters` of the old job as fields of Vertex AI's HyperparameterTuningJob.

Fields: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/StudySpec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_pipelines.migration.notes import Notes

#: The default of `hyperparameterMetricTag`.
DEFAULT_METRIC = "training/hptuning/metric"
_MOST_VALUES = 1000
_LARGEST_INTEGER = 2**63 - 1
_FIELD = "hyperparameters"


def tuning_fields(given: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """`studySpec` and the numbers of trials; what both services refuse is refused."""
    parameters = [
        _parameter(parameter or {}, f"{_FIELD}.params[{number}]", notes)
        for number, parameter in enumerate(given.get("params", []))
    ]
    _check_all(given, parameters, notes)
    counts = _trials(given, notes)
    metric = given.get("hyperparameterMetricTag") or DEFAULT_METRIC
    notes.changed(
        _FIELD,
        "The job becomes a HyperparameterTuningJob. The training reports its metric "
        f"{metric} with the package cloudml-hypertune; hyperparameters come as arguments, as before.",
    )
    study: dict[str, Any] = {
        "metrics": [{"metricId": metric, "goal": "MINIMIZE" if given.get("goal") == "MINIMIZE" else "MAXIMIZE"}],
        "parameters": parameters,
    }
    _set_algorithm(study, given, notes)
    if given.get("enableTrialEarlyStopping"):
        study["medianAutomatedStoppingSpec"] = {"useElapsedDuration": False}
        notes.changed(
            f"{_FIELD}.enableTrialEarlyStopping",
            "Vertex AI wants a rule: trials end early that are below the median of the others, by steps.",
        )
    if given.get("resumePreviousJobId"):
        notes.dropped(f"{_FIELD}.resumePreviousJobId", "Studies of AI Platform Training cannot be continued.")
    return {"studySpec": study, **counts}


def _set_algorithm(study: dict[str, Any], given: Mapping[str, Any], notes: Notes) -> None:
    algorithm = given.get("algorithm")
    if algorithm in ("GRID_SEARCH", "RANDOM_SEARCH"):
        study["algorithm"] = algorithm
    elif algorithm == "POPULATION_BASED_TRAINING":
        notes.dropped(
            f"{_FIELD}.algorithm",
            "Vertex AI has no population based training; the job takes its default, a Bayesian search.",
        )


def _trials(given: Mapping[str, Any], notes: Notes) -> dict[str, int]:
    most, parallel, failed = (
        given.get("maxTrials", 1),
        given.get("maxParallelTrials", 1),
        given.get("maxFailedTrials", 0),
    )
    for name, value, least in (
        ("maxTrials", most, 1),
        ("maxParallelTrials", parallel, 1),
        ("maxFailedTrials", failed, 0),
    ):
        if not least <= value < 2**31:
            notes.refuse(f"{_FIELD}.{name} is {value}; it is at least {least}.")
    found = {"maxTrialCount": most, "parallelTrialCount": parallel}
    return {**found, "maxFailedTrialCount": failed} if failed else found


def _check_all(given: Mapping[str, Any], parameters: list[dict[str, Any]], notes: Notes) -> None:
    if not parameters:
        notes.refuse(f"{_FIELD}.params is empty; there is nothing to tune.")
    names = [parameter["parameterId"] for parameter in parameters]
    if len(set(names)) < len(names):
        notes.refuse(f"{_FIELD}.params has a name twice: {', '.join(map(str, names))[:200]}.")
    if given.get("algorithm") == "GRID_SEARCH" and any("doubleValueSpec" in parameter for parameter in parameters):
        notes.refuse(f"{_FIELD}.algorithm is GRID_SEARCH, which takes no parameter of the type DOUBLE.")
    metric = given.get("hyperparameterMetricTag") or DEFAULT_METRIC
    if any(character.isspace() for character in metric):
        notes.refuse(f"{_FIELD}.hyperparameterMetricTag is {metric[:60]!r}; Vertex AI takes none with spaces.")


def _parameter(given: Mapping[str, Any], where: str, notes: Notes) -> dict[str, Any]:
    name, kind = given.get("parameterName", ""), given.get("type")
    if not name or any(character.isspace() for character in name):
        notes.refuse(f"{where}.parameterName is {name[:60]!r}; it is a name without spaces.")
    found: dict[str, Any] = {"parameterId": name}
    if kind in ("INTEGER", "DOUBLE"):
        found |= _range(given, where, notes)
    elif kind == "CATEGORICAL":
        found["categoricalValueSpec"] = {"values": given.get("categoricalValues", [])}
        if not given.get("categoricalValues"):
            notes.refuse(f"{where} is CATEGORICAL, which needs categoricalValues.")
    elif kind == "DISCRETE":
        values = given.get("discreteValues", [])
        found["discreteValueSpec"] = {"values": values}
        if not values or len(values) > _MOST_VALUES or values != sorted(set(values)):
            notes.refuse(f"{where} is DISCRETE, which needs 1 to {_MOST_VALUES} discreteValues in increasing order.")
    else:
        notes.refuse(f"{where} needs a type: INTEGER, DOUBLE, CATEGORICAL or DISCRETE.")
    scale = given.get("scaleType", "NONE")
    if scale != "NONE" and kind != "CATEGORICAL":
        found["scaleType"] = scale
        if "LOG" in scale and _least(given) <= 0:
            notes.refuse(f"{where}.scaleType is {scale}, which takes values above 0 alone.")
    return found


def _least(given: Mapping[str, Any]) -> float:
    values = given.get("discreteValues") if given.get("type") == "DISCRETE" else [given.get("minValue")]
    return min((value for value in values or [] if value is not None), default=1.0)


def _range(given: Mapping[str, Any], where: str, notes: Notes) -> dict[str, Any]:
    low, high = given.get("minValue"), given.get("maxValue")
    kind = given["type"]
    if low is None or high is None or low > high:
        notes.refuse(f"{where} is {kind}, which needs minValue and a maxValue that is not below it.")
        return {}
    if kind == "DOUBLE":
        return {"doubleValueSpec": {"minValue": low, "maxValue": high}}
    if not (low.is_integer() and high.is_integer()) or max(abs(low), abs(high)) > _LARGEST_INTEGER:
        notes.refuse(f"{where} is INTEGER; {low:g} and {high:g} are no whole numbers of 64 bits.")
        return {}
    return {"integerValueSpec": {"minValue": int(low), "maxValue": int(high)}}

"""A search space as the `StudySpec` of Vertex AI's tuning jobs, with the names of the API's protobuf fields.

Fields: https://cloud.google.com/vertex-ai/docs/reference/rest/v1/StudySpec. A parameter that counts only with a value
of another is one of its `conditional_parameter_specs`. There it has one parent; the trial checks any further
conditions, and leaves out what does not count.
"""

from __future__ import annotations

from typing import Any

from gpu_pipelines.errors import UserError
from gpu_pipelines.tuning.service.study import METRIC, conditions_of, is_numeric, listed_values, text_of
from gpu_pipelines.tuning.space import Dimension, SearchSpace

#: Most values of a `DiscreteValueSpec`.
_MOST_VALUES = 1_000
_ALGORITHMS = {"tpe": "ALGORITHM_UNSPECIFIED", "random": "RANDOM_SEARCH"}
METRICS = [{"metric_id": METRIC, "goal": "MINIMIZE"}]
#: The lowest loss so far is that of the best checkpoint, which is the result of a trial.
MEASUREMENT = "BEST_MEASUREMENT"


def algorithm_of(sampler: str) -> str:
    """The algorithm that chooses the values: the service's default, a Bayesian search, or a random one.

    Args:
        sampler: tpe, which uses the losses so far, or random.
    """
    return _ALGORITHMS[sampler]


def stopping_of(reduction: int) -> dict[str, Any]:
    """The rule that ends trials early, a `median_automated_stopping_spec`; empty for none.

    The service ends a trial whose lowest loss is worse than the median of the others' means at that time. The rule uses
    time and not steps: GCPC's launcher drops false values, and with them the rule.

    Args:
        reduction: 1 if no trial is to end early.
    """
    return {"use_elapsed_duration": True} if reduction > 1 else {}


def parameters_of(space: SearchSpace) -> list[dict[str, Any]]:
    """The parameters of a study; dependent ones are below their parent.

    Args:
        space: the search space.

    Raises:
        UserError: a step leaves more values than the service takes.
    """
    specs = {each.name: _parameter(each) for each in space.dimensions}
    by_name = {each.name: each for each in space.dimensions}
    roots = []
    for dimension in space.dimensions:
        conditions = conditions_of(space, dimension)
        if not conditions:
            roots.append(specs[dimension.name])
            continue
        parent, wanted = next(iter(conditions.items()))
        below = {**_parent_values(by_name[parent], wanted), "parameter_spec": specs[dimension.name]}
        specs[parent].setdefault("conditional_parameter_specs", []).append(below)
    return roots


def _parameter(dimension: Dimension) -> dict[str, Any]:
    named = {"parameter_id": dimension.name}
    if dimension.kind == "categorical":
        if is_numeric(dimension.choices):
            return {**named, "discrete_value_spec": {"values": sorted(map(float, dimension.choices))}}
        return {**named, "categorical_value_spec": {"values": [text_of(each) for each in dimension.choices]}}
    if dimension.step and not (dimension.kind == "int" and dimension.step == 1):
        values = listed_values(dimension)
        if len(values) > _MOST_VALUES:
            raise UserError(
                f"{dimension.name} has {len(values):,} values by its step; Vertex AI takes {_MOST_VALUES:,}.",
                "Give a larger step, or none.",
            )
        return {**named, "discrete_value_spec": {"values": [float(each) for each in values]}}
    kind = "integer_value_spec" if dimension.kind == "int" else "double_value_spec"
    ends = {"min_value": dimension.low, "max_value": dimension.high}
    return {**named, kind: ends, "scale_type": "UNIT_LOG_SCALE" if dimension.log else "UNIT_LINEAR_SCALE"}


def _parent_values(parent: Dimension, wanted: Any) -> dict[str, Any]:
    """A value of another parameter in the form of a condition."""
    if is_numeric(parent.choices):
        return {"parent_discrete_values": {"values": [float(wanted)]}}
    return {"parent_categorical_values": {"values": [text_of(wanted)]}}

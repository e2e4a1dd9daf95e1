"""The rarely used parameters of a pipeline: fields of its one parameter `advanced`, checked and sorted by step.

The parameters are those of the steps' settings. This module is imported in a step, where KFP's compiler is not there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from gpu_pipelines.errors import nearest
from gpu_pipelines.tasks.tasks import TASKS, task_named

ADVANCED = "advanced"
#: The parameters that stand in a pipeline's form one by one; all others are fields of `advanced`.
COMMON = (
    "source",
    "task",
    "label_column",
    "text_column",
    "image_size",
    "tokenizer",
    "sequence_length",
    "model",
    "epochs",
    "learning_rate",
    "global_batch_size",
    "lora_rank",
    "gates",
    "registry",
    "model_name",
    "start_from_champion",
    "checkpoint_uri",
)
#: What a pipeline fills in itself.
FILLED_IN = ("passed", "pipeline_job", "encryption_key", "source_fingerprint", "test_source_fingerprint", ADVANCED)
#: What a value of each type is called, for people.
_CALLED = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list of texts",
    dict: "a mapping",
}


def is_of(name: str, task: str) -> bool:
    """Whether a parameter is for a task; every parameter is for a task that is left open."""
    if not task or name in task_named(task).parameters:
        return True
    return not any(name in other.parameters for other in TASKS.values())


def advanced_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `advanced` with their defaults.

    Args:
        settings: the settings of a pipeline's steps, by the output of `check_request` that has some of them.
    """
    every = {name: default for each in settings.values() for name, default in _defaults(each).items()}
    return {name: default for name, default in every.items() if name not in (*COMMON, *FILLED_IN)}


def read_advanced(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The fields of `advanced` with the types that the steps take, and what is wrong with them.

    Args:
        given: as it came out of JSON, where a whole number may have a point.
        defaults: those that there are; see `advanced_defaults`.
    """
    read: dict[str, Any] = {}
    problems = []
    for name, value in given.items():
        if name not in defaults:
            known = "It stands beside advanced." if name in COMMON else nearest(name, sorted(defaults))
            problems.append(f"advanced has no field {name[:80]!r}. {known}")
            continue
        wanted = type(defaults[name])
        try:
            read[name] = typed(wanted, value)
        except ValueError:
            problems.append(f"{name} (in advanced) takes {_CALLED[wanted]}; got {json.dumps(value)[:80]}.")
    return read, problems


def typed(wanted: Any, value: Any) -> Any:
    """A value out of JSON as a step takes it: JSON of a service has a point in every number.

    Raises:
        ValueError: it is of another type.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if wanted is int and is_number and math.isfinite(value) and value == int(value):
        return int(value)
    if wanted is float and is_number:
        return float(value)
    if wanted in (str, bool, dict) and isinstance(value, wanted):
        return value
    if wanted is list and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise ValueError(value)


def by_step(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Values of fields of `advanced`, sorted by the step that takes them; one that several take goes to each.

    Args:
        values: by name.
        settings: as for `advanced_defaults`.
    """
    names: dict[str, Collection[str]] = {step: _defaults(each) for step, each in settings.items()}
    return {step: {name: value for name, value in values.items() if name in names[step]} for step in settings}


def _defaults(settings: Any) -> dict[str, Any]:
    made = settings()
    return {field.name: getattr(made, field.name) for field in fields(settings)}

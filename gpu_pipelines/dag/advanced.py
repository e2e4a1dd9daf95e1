"""The rarely used parameters of a pipeline: fields of its one parameter `advanced`, checked and sorted by step.

The parameters are those of the steps' settings. This module is imported in a step, which lacks KFP's compiler.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_pipelines.component_interface.catalog import COMPONENTS, common_parameters, settings_of
from gpu_pipelines.component_interface.parameter import CALLED, Parameter, parameters_in, typed
from gpu_pipelines.errors import nearest
from gpu_pipelines.tasks.tasks import BUILT_IN, task_named

ADVANCED = "advanced"
_SEE = "See docs/tasks.md."
#: The parameters that have inputs of their own in the forms of trainings; all others are fields of `advanced`.
COMMON = tuple(common_parameters())


def is_of(name: str, task: str) -> bool:
    """Whether a parameter is for a task; if the task is left open, every parameter is."""
    if not task or name in task_named(task).parameters:
        return True
    # A task of a package says what it takes itself, not what the others take.
    return not any(name in task_named(other).parameters for other in BUILT_IN)


def problems_of_names(task: str) -> list[str]:
    """Names in the attributes of a task that are no parameters, which nobody would read."""
    of_task, known = task_named(task), {name for each in COMPONENTS for name in parameters_in(settings_of(each))}
    return [
        f"The task {task} has {name!r} in {attribute}, which is no parameter. {nearest(name, known, otherwise=_SEE)}"
        for attribute in ("parameters", "defaults")
        for name in getattr(of_task, attribute)
        if name not in known
    ]


def parameters_of_users(settings: Iterable[type]) -> dict[str, Parameter]:
    """The parameters of steps that users give, by name; if several steps have one, that of the first step.

    Args:
        settings: the dataclasses that declare them.
    """
    found: dict[str, Parameter] = {}
    for each in settings:
        for name, declared in parameters_in(each).items():
            if not declared.filled_in:
                found.setdefault(name, declared)
    return found


def fields_of_advanced(settings: Iterable[type]) -> dict[str, Parameter]:
    """The parameters of steps that are fields of `advanced`, by name.

    Args:
        settings: the dataclasses that declare them.
    """
    declared = tuple(settings)
    common = {name for each in declared for name, parameter in parameters_in(each).items() if parameter.common}
    return {name: each for name, each in parameters_of_users(declared).items() if name not in common}


def parameter_with(fields: Mapping[str, Parameter], example: Mapping[str, Any]) -> Parameter:
    """The parameter `advanced`, with each field's default and meaning in its description.

    Args:
        fields: its fields, by name.
        example: of a value.
    """
    lines = [f"- {name} ({json.dumps(field.default)}): {field.text}" for name, field in sorted(fields.items())]
    shown = json.dumps(example)
    head = f"Further parameters in one JSON object, such as {shown}; those left out have the default in parentheses."
    return Parameter("Dict", {}, text="\n".join([head, *lines]))


def read_advanced(given: Mapping[str, Any], fields: Mapping[str, Parameter]) -> tuple[dict[str, Any], list[str]]:
    """The fields of `advanced` in the types of the steps, and what is wrong with them.

    Args:
        given: as parsed from JSON, where a whole number may have a point.
        fields: the possible ones; see `fields_of_advanced`.
    """
    read: dict[str, Any] = {}
    problems = []
    for name, value in given.items():
        if name not in fields:
            known = "It stands beside advanced." if name in COMMON else nearest(name, sorted(fields))
            problems.append(f"advanced has no field {name[:80]!r}. {known}")
            continue
        wanted = fields[name].type
        try:
            read[name] = typed(wanted, value)
        except ValueError:
            problems.append(f"{name} (in advanced) takes {CALLED[wanted]}; got {json.dumps(value)[:80]}.")
    return read, problems


def by_step(values: Mapping[str, Any], settings: Mapping[str, type]) -> dict[str, dict[str, Any]]:
    """Values of fields of `advanced`, sorted by the step that takes them; a field of several steps goes to each.

    Args:
        values: by name.
        settings: the dataclass that declares the parameters of each step, by the output of `check_request` for it.
    """
    names = {step: parameters_in(each) for step, each in settings.items()}
    return {step: {name: value for name, value in values.items() if name in names[step]} for step in settings}

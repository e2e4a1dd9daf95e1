"""The form of a pipeline's inputs: a field for each parameter, and the values that were sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_pipelines.console.pipelines import Pipeline
from gpu_pipelines.driver.parameters.advanced_fields import ADVANCED
from gpu_pipelines.numbers import as_number

if TYPE_CHECKING:
    from gpu_pipelines.component_interface.parameter import Parameter

#: Prefix of the fields of parameters, whose names may be anything.
PREFIX = "p."
_KINDS = {
    "String": "text",
    "Integer": "whole number",
    "Float": "number",
    "Boolean": "true or false",
    "List": "list, as JSON or separated by commas",
    "Dict": "mapping, as JSON",
}
_LONG = ("List", "Dict")
_TRUTHS = ("true", "false")


@dataclass(frozen=True)
class Field:
    """A field of the form.

    Attributes:
        name: the name of the parameter.
        control: select, number, long or text.
        kind: its type in words; empty if the control shows it.
        text: its description.
        value: its current value.
        default: the value before anybody changed it.
        required: whether a value is required.
        choices: the possible values.
    """

    name: str
    control: str
    kind: str
    text: str
    value: str
    default: str
    required: bool
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """Its name in the form."""
        return PREFIX + self.name


def fields_of(parameters: Mapping[str, Parameter], values: Mapping[str, str]) -> list[Field]:
    """The fields for parameters.

    Args:
        parameters: by name.
        values: texts in place of the defaults, by parameter.
    """
    return [_field(name, each, values) for name, each in parameters.items() if not each.filled_in]


def given_in(pipeline: Pipeline, fields: Mapping[str, str]) -> dict[str, str]:
    """The values of a form that differ from the defaults, by parameter.

    Args:
        pipeline: the pipeline of the form.
        fields: the fields that were sent.
    """
    found = {}
    for name, each in pipeline.every_parameter.items():
        text = fields.get(PREFIX + name)
        # A browser ends lines with CR and LF.
        text = text.replace("\r\n", "\n") if text is not None else None
        if text is not None and text != _text(each.default) and (text or each.type == "String"):
            found[name] = text
    return found


def checked(pipeline: Pipeline, given: Mapping[str, str]) -> dict[str, Any]:
    """The values of all parameters with their types.

    Raises:
        UserError: lists every value that is missing or of a wrong type.
    """
    from gpu_pipelines.driver.parameters.arguments import all_arguments

    assignments = [f"{name}={text}" for name, text in given.items()]
    return all_arguments(pipeline.every_parameter, assignments, None, of_anybody=pipeline.file is not None)


def values_of_run(pipeline: Pipeline, parameters: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of a run as values of its pipeline's form; those in `advanced` each under its own name."""
    inside = parameters.get(ADVANCED)
    opened = {**parameters, **(inside if isinstance(inside, Mapping) else {})}
    # The service writes every number with a decimal point.
    whole = {name for name, each in pipeline.every_parameter.items() if each.type == "Integer"}
    return {
        name: _text(as_number(int, value) if name in whole else value)
        for name, value in opened.items()
        if value is not inside
    }


def _field(name: str, parameter: Parameter, values: Mapping[str, str]) -> Field:
    default = _text(parameter.default)
    control, choices = "text", parameter.choices
    if parameter.type == "Boolean":
        control, choices = "select", _TRUTHS
    elif choices:
        control = "select"
    elif parameter.type in _LONG:
        control = "long"
    elif parameter.type in ("Integer", "Float"):
        control = "number"
    value = values.get(name, default)
    if control == "select" and value not in choices:
        choices = (value, *choices)
    kind = _KINDS.get(parameter.type, parameter.type)
    return Field(name, control, kind, parameter.text, value, default, not parameter.optional, tuple(choices))


def _text(value: Any) -> str:
    """A value in the form of a field's text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

"""How a parameter of a step is declared: once, as a field of the step's settings, with its default and its meaning.

The stubs and READMEs of the components, the forms of the pipelines and the command line are made from that.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from os import PathLike, fspath
from typing import Any, TypeVar, cast

from gpu_pipelines.numbers import as_number

Value = TypeVar("Value")

#: What KFP calls the types of parameters.
KFP_TYPES: Mapping[type, str] = {
    str: "String",
    int: "Integer",
    float: "Float",
    bool: "Boolean",
    list: "List",
    dict: "Dict",
}
#: The types by these names.
PYTHON_TYPES: Mapping[str, type] = {name: kind for kind, name in KFP_TYPES.items()}
#: What a value of each is called, for people.
CALLED: Mapping[str, str] = {
    "String": "text",
    "Integer": "a whole number",
    "Float": "a number",
    "Boolean": "true or false",
    "List": "a list of texts",
    "Dict": "a mapping",
}
_DECLARED = "parameter"


@dataclass(frozen=True)
class Flag:
    """The option of the command line that a parameter has besides `-p`.

    Attributes:
        name: of the option, such as `--trials`.
        metavar: what stands for its value.
        group: heading in the help.
        is_file: whether it names a YAML file of this machine, whose content, as JSON, is the value.
    """

    name: str
    metavar: str
    group: str
    is_file: bool = False


@dataclass(frozen=True)
class Parameter:
    """A parameter of a step or of a pipeline.

    Attributes:
        type: as KFP calls it: String, Integer, Float, Boolean, List or Dict.
        default: its value where none is given.
        optional: whether it may be left out.
        text: what it means, with units and allowed values.
        common: whether it stands in a pipeline's form; the others are fields of the parameter `advanced`.
        filled_in: whether pipelines fill it in themselves, so that no user gives it.
        choices: the values that it can have; empty if these are not few.
        flag: its own option of the command line; None for none.
    """

    type: str
    default: Any = None
    optional: bool = True
    text: str = ""
    common: bool = False
    filled_in: bool = False
    choices: tuple[str, ...] = ()
    flag: Flag | None = None


def parameter(
    default: Value,
    text: str,
    *,
    common: bool = False,
    filled_in: bool = False,
    choices: tuple[str, ...] = (),
    flag: Flag | None = None,
) -> Value:
    """Declares a parameter as a field of a dataclass: `epochs: float = parameter(3.0, "Passes over the rows.")`.

    Args:
        default: its value where none is given, of the type that the field has.
        text: what it means, with units and allowed values.
        common: whether it stands in a pipeline's form; the others are fields of the parameter `advanced`.
        filled_in: whether pipelines fill it in themselves, so that no user gives it.
        choices: the values that it can have; empty if these are not few.
        flag: its own option of the command line; None for none.

    Returns:
        What a dataclass makes a field of.
    """
    declared = Parameter(KFP_TYPES[type(default)], default, True, text, common, filled_in, choices, flag)
    metadata = {_DECLARED: declared}
    if isinstance(default, (list, dict)):
        return cast("Value", field(default_factory=lambda: copy.copy(default), metadata=metadata))
    return field(default=default, metadata=metadata)


def parameters_in(settings: type) -> dict[str, Parameter]:
    """The parameters that a dataclass declares, by name, in their order."""
    return {each.name: each.metadata[_DECLARED] for each in fields(settings)}


def plain(value: Any) -> Any:
    """A value of a Python program as JSON has it: paths are texts, and numbers and arrays of NumPy are Python's own."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, tuple):
        return list(value)
    return value.tolist() if hasattr(value, "tolist") else value


def typed(wanted: str, value: Any) -> Any:
    """A value out of JSON, where a whole number may have a point, as a step takes it.

    Args:
        wanted: type of the parameter, as KFP calls it.
        value: it.

    Raises:
        ValueError: it is of another type.
    """
    kind = PYTHON_TYPES[wanted]
    found = as_number(kind, value)
    if type(found) is not kind or (kind is list and not all(isinstance(item, str) for item in value)):
        raise ValueError(value)
    return found


def shown_value(value: Any) -> str:
    """A parameter's value as people read it: a list of texts without its brackets, everything else as JSON has it."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

"""Declarations of a step's parameters: one field of the step's settings each, with its default and meaning.

The stubs and READMEs of the components, the forms of the pipelines and the command line are made from them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from os import PathLike, fspath
from typing import Any, TypeVar, cast

from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.numbers import as_number

Value = TypeVar("Value")

#: KFP's names for the types of parameters.
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
#: Names for values of each type, for people.
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
    """The command line option of a parameter, besides `-p`.

    Attributes:
        name: its name, such as `--trials`.
        metavar: placeholder for its value.
        group: heading in the help.
        is_file: whether it names a YAML file of this machine; the value is then its content, as JSON.
    """

    name: str
    metavar: str
    group: str
    is_file: bool = False


@dataclass(frozen=True)
class Parameter:
    """A parameter of a step or of a pipeline.

    Attributes:
        type: type by KFP's name: String, Integer, Float, Boolean, List or Dict.
        default: its value if none is given.
        optional: whether it may be left out.
        text: its meaning, with units and allowed values.
        common: whether it is an input of the pipeline; the others are fields of the parameter `advanced`.
        filled_in: whether pipelines fill it in themselves, so that no user gives it.
        choices: its possible values; empty if there are many.
        flag: its own command line option; None for none.
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
        default: its value if none is given, of the field's type.
        text: its meaning, with units and allowed values.
        common: whether it is an input of the pipeline; the others are fields of the parameter `advanced`.
        filled_in: whether pipelines fill it in themselves, so that no user gives it.
        choices: its possible values; empty if there are many.
        flag: its own command line option; None for none.

    Returns:
        The field for a dataclass.
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
    """A value of a Python program in the form of JSON: paths become texts, NumPy's numbers and arrays Python's own."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, tuple):
        return list(value)
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, type) else value


def joined(value: Any) -> Any:
    """A list of texts as a text with commas, such as the names of several columns; any other value as it is."""
    are_texts = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    return ",".join(value) if are_texts else value


def listed(text: str) -> Any:
    """A list of texts that is written as one, with commas or as JSON.

    Raises:
        ValueError: it begins as JSON and is none.
    """
    if not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    return json.loads(text, parse_int=str, parse_float=str)  # as written, like in a file


def typed(wanted: str, value: Any) -> Any:
    """A JSON value, in which a whole number may have a point, in the type that a step takes.

    Args:
        wanted: type of the parameter, by KFP's name.
        value: the value.

    Raises:
        ValueError: it has another type.
    """
    kind = PYTHON_TYPES[wanted]
    found = as_number(kind, value)
    if type(found) is not kind or (kind is list and not all(isinstance(item, str) for item in value)):
        raise ValueError(value)
    return found


def typed_values(
    declared: Mapping[str, Parameter], given: Mapping[str, Any], of: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """Values that a program gives in the types of their parameters, and what is wrong with them.

    A list of texts may be one text with commas, and such a text a list, as on a command line. None means not given. In
    place of a value of the wrong type stands the default.

    Args:
        declared: the parameters, by name.
        given: the values, by name.
        of: what the parameters are of, for the messages.
    """
    values, problems = {}, []
    for name, value in given.items():
        if name not in declared:
            problems.append(f"There is no parameter {name[:80]!r}{of}. {nearest(name, declared)}")
            continue
        if value is None:
            continue
        wanted, found = declared[name].type, plain(value)
        try:
            if wanted == "List" and isinstance(found, str):
                found = listed(found)
            values[name] = typed(wanted, joined(found) if wanted == "String" else found)
        except ValueError:
            values[name] = declared[name].default
            problems.append(f"{name} takes {CALLED[wanted]}; got {str(value)[:80]!r}.")
    return values, problems


def settings_given(settings: type[Value], given: Mapping[str, Any], **otherwise: Any) -> Value:
    """The settings of a step with the parameters that a program gives.

    Args:
        settings: dataclass of the step's parameters.
        given: the values, by name; None means not given.
        otherwise: values in place of the defaults.

    Raises:
        UserError: lists every unknown parameter and every value of a wrong type.
    """
    values, problems = typed_values(parameters_in(settings), given)
    if problems:
        raise UserError.of_all(problems)
    return settings(**{**otherwise, **values})


def shown_value(value: Any) -> str:
    """A parameter's value for people: a list of texts without its brackets, everything else as JSON."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

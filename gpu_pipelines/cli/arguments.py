"""Pipeline parameters from the command line and from a file, checked against the interface of the pipeline or of the
file that it was compiled to."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.numbers import LARGEST_WHOLE_NUMBER, number_of
from gpu_pipelines.yaml_input import data_of, node_of, read_text, text_of

_TYPES = {
    "String": "text",
    "Integer": "a whole number (at most 2^53)",
    "Float": "a number",
    "Boolean": "true or false",
    "List": "a list of texts",
    "Dict": "a mapping",
}


#: What a compiled file calls the types.
_COMPILED_TYPES = {
    "STRING": "String",
    "NUMBER_INTEGER": "Integer",
    "NUMBER_DOUBLE": "Float",
    "BOOLEAN": "Boolean",
    "LIST": "List",
    "STRUCT": "Dict",
}


@dataclass(frozen=True)
class Parameter:
    """What a pipeline says of one of its parameters.

    Attributes:
        type: String, Integer, Float, Boolean, List or Dict.
        default: its value where none is given.
        optional: whether it may be left out.
    """

    type: str
    default: Any = None
    optional: bool = True


def pipeline_arguments(pipeline: Any, assignments: Sequence[str], file: Path | None) -> dict[str, Any]:
    """All parameters of a run: those given, and defaults for the rest.

    Args:
        pipeline: a KFP pipeline.
        assignments: texts of the form `key=value`; they win over the file.
        file: a YAML mapping of parameters.

    Raises:
        UserError: lists every unknown parameter and every value of a wrong type.
    """
    inputs = pipeline.component_spec.inputs or {}
    known = {name: Parameter(spec.type, spec.default, spec.optional) for name, spec in inputs.items()}
    return all_arguments(known, assignments, file)


def parameters_of_spec(spec: Mapping[str, Any]) -> dict[str, Parameter]:
    """The parameters of a compiled pipeline, by name."""
    definitions = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    return {name: _parameter(definition) for name, definition in definitions.items()}


def _parameter(definition: Mapping[str, Any]) -> Parameter:
    given = str(definition.get("parameterType"))
    kind, default = _COMPILED_TYPES.get(given, given), definition.get("defaultValue")
    return Parameter(kind, _stored(kind, default), definition.get("isOptional", False) or default is not None)


def _stored(kind: str, value: Any) -> Any:
    """A value as a compiled file or the service holds it, where every number has a point."""
    return int(value) if kind == "Integer" and value is not None else value


def all_arguments(
    known: Mapping[str, Parameter],
    assignments: Sequence[str],
    file: Path | None,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """As `pipeline_arguments`, of parameters that are known by name.

    Args:
        known: the parameters.
        assignments: texts of the form `key=value`; they win over the file.
        file: a YAML mapping of parameters.
        before: values that stand where no other is given, in place of the defaults.

    Raises:
        UserError: lists every unknown parameter and every value of a wrong type.
    """
    problems: list[str] = []
    texts: list[tuple[str, Any]] = list(_from_file(file)) if file else []
    for assignment in assignments:
        name, sign, text = assignment.partition("=")
        if not _is_text(assignment):
            problems.append(f"-p {assignment[:80]!a} is not UTF-8, which KFP takes alone. Rename the file, say.")
        elif sign:
            texts.append((name.strip(), text))
        else:
            problems.append(f"-p {assignment[:80]} is not of the form key=value.")
    given = {name: _stored(known[name].type, value) for name, value in (before or {}).items() if name in known}
    for name, value in texts:
        if name not in known:
            problems.append(f"There is no parameter {name[:80]!r}. {nearest(name, sorted(known))}")
            continue
        try:
            given[name] = _converted(known[name].type, value)
        except (ValueError, RecursionError):
            given[name] = None
            wanted = _TYPES.get(known[name].type, known[name].type)
            problems.append(f"{name} takes {wanted}; got {str(value)[:80]!r}.")
    problems += [
        f"The parameter {name} must be given." for name, p in known.items() if not (p.optional or name in given)
    ]
    if problems:
        raise UserError.of_all(problems)
    return {name: given.get(name, copy.deepcopy(parameter.default)) for name, parameter in known.items()}


def _is_text(given: str) -> bool:
    """Whether it can be written as UTF-8; bytes of a command line that cannot come as lone surrogates."""
    try:
        given.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _from_file(path: Path) -> list[tuple[str, Any]]:
    """Names and values of a YAML mapping.

    A scalar is its text as written, like on the command line: YAML 1.1 itself would read 1e-3 as text, 010 as 8 and
    12:30 as 750.
    """
    what = f"The parameter file {path}"
    root = node_of(read_text(path, what), what)
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{what} is not a mapping of parameter names to values.")
    return [(str(key.value), _plain(value, what)) for key, value in root.value]


def _plain(node: yaml.Node, what: str) -> Any:
    """Texts, lists of texts, mappings with JSON's types, or None, of a YAML node."""
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, what) for item in node.value]
    return data_of(node, what) if isinstance(node, yaml.MappingNode) else text_of(node)


def _converted(wanted: str, value: Any) -> Any:
    """A value of the type, from a text or from what a file held.

    Raises:
        ValueError: it is none.
    """
    if wanted in ("String", "Integer", "Float", "Boolean"):
        if not isinstance(value, str):
            raise ValueError
        return _SCALARS[wanted](value)
    if isinstance(value, str):
        value = _list_or_json(wanted, value)
    if wanted == "List" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    if wanted == "Dict" and isinstance(value, dict):
        try:
            return json.loads(json.dumps(value, allow_nan=False))
        except TypeError:
            raise ValueError from None
    raise ValueError


def _list_or_json(wanted: str, text: str) -> Any:
    if wanted == "List" and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    return json.loads(text)


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip(), re.ASCII) or abs(int(text)) > LARGEST_WHOLE_NUMBER:
        raise ValueError
    return int(text)


def _number(text: str) -> float:
    number = number_of(text.strip())
    if not math.isfinite(number):
        raise ValueError
    return number


def _truth(text: str) -> bool:
    truths: Mapping[str, bool] = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if text.strip().lower() not in truths:
        raise ValueError
    return truths[text.strip().lower()]


_SCALARS: Mapping[str, Any] = {"String": str, "Integer": _whole_number, "Float": _number, "Boolean": _truth}

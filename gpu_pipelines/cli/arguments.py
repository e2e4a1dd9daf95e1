"""Pipeline parameters from the command line and from a file, checked against the pipeline's own interface."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpu_pipelines.errors import UserError
from gpu_pipelines.recipes.tasks import nearest

_TYPES = {
    "String": "text",
    "Integer": "a whole number",
    "Float": "a number",
    "Boolean": "true or false",
    "List": "a list",
    "Dict": "a mapping",
}


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
    problems: list[str] = []
    given: dict[str, Any] = {}
    for name, value in (_from_file(file) if file else {}).items():
        _take(given, problems, inputs, str(name), value)
    for assignment in assignments:
        name, sign, text = assignment.partition("=")
        if not sign:
            problems.append(f"-p {assignment} is not of the form key=value.")
        else:
            _take(given, problems, inputs, name.strip(), text, from_text=True)
    problems += [
        f"The parameter {name} must be given." for name, i in inputs.items() if not i.optional and name not in given
    ]
    if problems:
        raise UserError.of_all(problems)
    return {name: given.get(name, spec.default) for name, spec in inputs.items()}


def _from_file(path: Path) -> Mapping[Any, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"The parameter file {path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"The parameter file {path} is not YAML: {' '.join(str(error).split())}.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"The parameter file {path} is not a mapping of parameter names to values.")
    return content


def _take(
    given: dict[str, Any],
    problems: list[str],
    inputs: Mapping[str, Any],
    name: str,
    value: Any,
    *,
    from_text: bool = False,
) -> None:
    if name not in inputs:
        problems.append(f"There is no parameter {name!r}. {nearest(name, inputs)}")
        return
    wanted = inputs[name].type
    try:
        given[name] = _from_text(wanted, value) if from_text else _checked(wanted, value)
    except ValueError:
        problems.append(f"{name} takes {_TYPES.get(wanted, wanted)}; got {str(value)[:80]!r}.")


def _from_text(wanted: str, text: str) -> Any:
    if wanted == "String":
        return text
    if wanted == "Integer":
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
            raise ValueError
        return int(text)
    if wanted == "Float":
        return _checked(wanted, float(text))
    if wanted == "Boolean":
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else _wrong()
    if wanted == "List" and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    return _checked(wanted, json.loads(text))


def _checked(wanted: str, value: Any) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if wanted == "String" and (is_number or isinstance(value, str)):
        return str(value)
    if wanted == "Float" and is_number and math.isfinite(value):
        return float(value)
    if wanted == "List" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    expected = {"Integer": int, "Boolean": bool, "Dict": dict}.get(wanted)
    if expected and isinstance(value, expected) and (wanted == "Boolean") == isinstance(value, bool):
        return value
    return _wrong()


def _wrong() -> Any:
    raise ValueError

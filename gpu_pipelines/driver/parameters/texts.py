"""Values of parameters from texts: of the command line, and of a YAML file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from gpu_pipelines.component_interface.catalog import flagged_parameters
from gpu_pipelines.component_interface.parameter import CALLED, joined, listed
from gpu_pipelines.errors import UserError
from gpu_pipelines.numbers import LARGEST_WHOLE_NUMBER, number_of
from gpu_pipelines.yaml_input import data_of, node_of, read_text, text_of

TYPES = {**CALLED, "Integer": "a whole number (at most 2^53)"}
#: What an error adds for a type whose name does not say how to write a value.
REMEDIES = {"Dict": ' Write it as JSON, {"NAME": "value"}; a shell wants that in quotes.'}


def content_if_file(name: str, value: Any, of_anybody: bool) -> Any:
    """A parameter's value, or the content of the YAML file on this machine that it names, if it may name one.

    Args:
        name: of the parameter.
        value: as it was given.
        of_anybody: whether it is a parameter of a user's pipeline, which names no such files.
    """
    declared = None if of_anybody else flagged_parameters().get(name)
    if declared is None or declared.flag is None or not declared.flag.is_file or not isinstance(value, str):
        return value
    path = Path(value).expanduser()
    with suppress(OSError):  # a text may be longer than any path
        if path.is_file():
            what = f"The file {path}"
            root = node_of(read_text(path, what), what)
            # On one line: forms, and the comments that KFP writes into its files, can hold no more.
            return "" if root is None else json.dumps(text_of(root), ensure_ascii=False)
    return value


def given_values(assignments: Sequence[str], file: Path | None) -> dict[str, Any]:
    """The values that a command line names, as they are written; `all_arguments` checks them.

    Args:
        assignments: texts of the form `key=value`; they win over the file.
        file: a YAML mapping of parameters.

    Raises:
        UserError: the file cannot be read.
    """
    found = dict(values_in_file(file)) if file else {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        found[name.strip()] = text
    return found


def values_in_file(path: Path, any_items: bool = False) -> list[tuple[str, Any]]:
    """Names and values of a YAML mapping.

    A scalar is its text as written, like on the command line: YAML 1.1 itself would read 1e-3 as text, 010 as 8 and
    12:30 as 750.

    Args:
        path: the file.
        any_items: whether lists may hold anything; otherwise only texts.
    """
    what = f"The parameter file {path}"
    root = node_of(read_text(path, what), what)
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{what} is not a mapping of parameter names to values.")
    return [(str(key.value), _plain(value, what, any_items)) for key, value in root.value]


def _plain(node: yaml.Node, what: str, any_items: bool = False) -> Any:
    """Texts, lists of texts or of anything, mappings with JSON's types, or None, of a YAML node."""
    if isinstance(node, yaml.SequenceNode):
        return [_item(item, what) if any_items else _plain(item, what) for item in node.value]
    return data_of(node, what) if isinstance(node, yaml.MappingNode) else text_of(node)


def _item(node: yaml.Node, what: str) -> Any:
    """An item of a list that may hold anything."""
    if isinstance(node, yaml.SequenceNode):
        return [_item(item, what) for item in node.value]
    if isinstance(node, yaml.ScalarNode) and not node.style:
        with suppress(ValueError):  # 1e-3 is a number of JSON's, and a text of YAML 1.1
            return json.loads(node.value)
    return data_of(node, what)


def converted(wanted: str, value: Any, any_items: bool = False) -> Any:
    """A value of the type, from a text or from a file.

    Args:
        wanted: KFP's name of the type.
        value: a text, or what the file has in its place.
        any_items: whether lists may hold anything; otherwise only texts, and a list may stand for a text with commas.

    Raises:
        ValueError: it is not one.
    """
    if wanted == "String" and not any_items:
        value = _joined(value)
    if wanted in ("String", "Integer", "Float", "Boolean"):
        if not isinstance(value, str):
            raise ValueError
        return _SCALARS[wanted](value)
    if isinstance(value, str):
        value = _list_or_json(wanted, value, any_items)
    is_list = isinstance(value, list) and (any_items or all(isinstance(item, str) for item in value))
    if (wanted == "List" and is_list) or (wanted == "Dict" and isinstance(value, dict)):
        try:
            return json.loads(json.dumps(value, allow_nan=False))
        except TypeError:
            raise ValueError from None
    raise ValueError


def _joined(value: Any) -> Any:
    """A list of texts, or JSON of one, as a text with commas: the names of several columns; else the value as it is."""
    items = value
    if isinstance(value, str) and value.startswith("["):
        with suppress(ValueError, RecursionError):
            items = json.loads(value)
    found = joined(items)
    return found if isinstance(found, str) else value


def _list_or_json(wanted: str, text: str, any_items: bool) -> Any:
    if wanted == "List" and any_items:
        with suppress(ValueError):
            return json.loads(text if text.lstrip().startswith("[") else f"[{text}]")
    return listed(text) if wanted == "List" else json.loads(text)


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

"""The file for `gcloud ai-platform jobs submit training --config`: a `Job` as YAML or JSON, and its values."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.migration.job_fields import (
    JOB,
    NUMBER,
    TEXT,
    TRAINING_INPUT,
    TRUTH,
    WHOLE,
    Choice,
    Kind,
    ListOf,
    Message,
    TextByName,
    Unread,
)
from gpu_pipelines.yaml_input import node_of, read_text, text_of

#: The command for a config of Vertex AI, by its first field.
_COMMANDS_OF_VERTEX = {
    "workerPoolSpecs": "gpu-pipelines job submit --config",
    "jobSpec": "gpu-pipelines job submit --config",
    "trialJobSpec": "gcloud ai hp-tuning-jobs create --config",
}
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
#: Integers of the API have at most 64 bits.
_LARGEST = 2**63 - 1
_SHOWN = 60


def read_job_file(path: Path) -> dict[str, Any]:
    """A job from a file; see `read_job`.

    Raises:
        UserError: the file cannot be read, or is not a job.
    """
    if path.suffix == ".py":
        raise UserError(
            f"{path} is a program, not the config of a job.",
            f"Jobs of AI Platform Training are migrated. A pipeline runs as it is: gpu-pipelines run {path}.",
        )
    return read_job(read_text(path, f"The file {path}"), str(path))


def read_job(text: str, origin: str) -> dict[str, Any]:
    """A `Job` with all fields checked and converted to their types; fields without a value are left out.

    Args:
        text: YAML or JSON.
        origin: its name in messages.

    Raises:
        UserError: lists all problems.
    """
    root = node_of(text, origin)
    if root is None:
        raise UserError(f"{origin} is empty.", "Leave it out if the flags describe the whole job.")
    document = text_of(root)
    if not isinstance(document, dict):
        raise UserError(f"{origin} is not a job: it is not a mapping.", "It begins with trainingInput:.")
    problems: list[str] = []
    _look_at_the_top(document, origin)
    job: dict[str, Any] = value_of(JOB, document, "", problems) or {}
    if problems:
        raise UserError.of_all([f"{origin}: {problem}" for problem in problems])
    return job


def _look_at_the_top(document: dict[Any, Any], origin: str) -> None:
    """Refuses files of other kinds, and names the kind."""
    if "trainingInput" not in document and any(name in TRAINING_INPUT.fields for name in document):
        raise UserError(f"{origin} has the fields of a training at its top.", "Put them below trainingInput:.")
    for field, command in _COMMANDS_OF_VERTEX.items():
        if field in document:
            raise UserError(f"{origin} is a config of Vertex AI already.", f"Submit it with {command}.")
    if document.get("predictionInput"):
        raise UserError(f"{origin} is a batch prediction; only trainings are migrated here.")


def value_of(kind: Kind, given: Any, where: str, problems: list[str]) -> Any:
    """The value of a field; None if it has none.

    Args:
        kind: the kind of the field.
        given: a text as written, lists and mappings of texts, or None for no value.
        where: the name of the field in messages.
        problems: gets all problems.
    """
    if isinstance(kind, Unread):
        return given
    if given is None:
        return None
    if isinstance(kind, Message):
        return _message(kind, given, where, problems)
    if isinstance(kind, ListOf):
        if not isinstance(given, list):
            problems.append(f"{where} takes a list, not {shown(given)}.")
            return None
        problems += [
            f"{where}[{number}] is a null, which is not a value. Leave it out, or quote it if it is a text."
            for number, item in enumerate(given)
            if item is None
        ]
        return [value_of(kind.item, item, f"{where}[{number}]", problems) for number, item in enumerate(given)]
    if isinstance(kind, TextByName):
        return _texts_by_name(given, where, problems)
    if not isinstance(given, str):
        problems.append(f"{where} takes one value, not {shown(given)}.")
        return None
    return given if kind == TEXT else _scalar(kind, given.strip(), where, problems)


def shown(value: Any) -> str:
    """A user's value for a message: on one line, short."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _message(kind: Message, given: Any, where: str, problems: list[str]) -> dict[str, Any] | None:
    if not isinstance(given, dict):
        problems.append(f"{where} takes fields with values, not {shown(given)}.")
        return None
    prefix = f"{where}." if where else ""
    found = {}
    for name, value in given.items():
        if not isinstance(name, str) or name not in kind.fields:
            hint = nearest(str(name), kind.fields, otherwise="")
            problems.append(f"There is no field {prefix}{str(name)[:_SHOWN]}. {hint}".rstrip())
            continue
        read = value_of(kind.fields[name], value, f"{prefix}{name}", problems)
        if read is not None:
            found[name] = read
    return found


def _texts_by_name(given: Any, where: str, problems: list[str]) -> dict[str, str] | None:
    if not isinstance(given, Mapping) or not all(isinstance(part, str) for pair in given.items() for part in pair):
        problems.append(f"{where} takes names with texts, not {shown(given)}.")
        return None
    return dict(given)


def _scalar(kind: Kind, text: str, where: str, problems: list[str]) -> Any:
    if isinstance(kind, Choice):
        return _choice(kind.values, text, where, problems)
    if kind == TRUTH and text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    if kind == WHOLE and re.fullmatch(r"[+-]?[0-9]{1,19}", text, re.ASCII) and abs(int(text)) <= _LARGEST:
        return int(text)
    if kind == NUMBER and (number := _number(text)) is not None:
        return number
    problems.append(f"{where} takes {kind}, not {shown(text)}.")
    return None


def _choice(values: Sequence[str], text: str, where: str, problems: list[str]) -> str | None:
    # gcloud writes the same values in lower case with dashes.
    name = text.upper().replace("-", "_")
    if name in values:
        return name
    problems.append(f"{where} is {shown(text)}. {nearest(name, values)}")
    return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None

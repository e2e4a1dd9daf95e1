"""Bodies held against the models of KFP's own client: an unknown field, or one of another type, is refused."""

from __future__ import annotations

import re
from typing import Any

import kfp_server_api
from google.protobuf import json_format
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec, PlatformSpec

_PLAIN: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "bool": (bool,), "float": (int, float)}
_OF_PIPELINES: dict[str, type | tuple[type, ...]] = {
    "NUMBER_INTEGER": (int, float),
    "NUMBER_DOUBLE": (int, float),
    "STRING": str,
    "BOOLEAN": bool,
    "LIST": list,
    "STRUCT": dict,
}


class Refused(Exception):
    """A request that the API answers with an error.

    Args:
        status: HTTP status.
        message: what it says.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def checked(model: str, document: Any) -> dict[str, Any]:
    """A body that is of a model, such as V2beta1Run.

    Raises:
        Refused: it is not.
    """
    if problems := _problems(model, document, model):
        raise Refused(400, "; ".join(problems))
    return dict(document)


def checked_spec(content: Any) -> None:
    """Reads a pipeline, with or without its part for Kubernetes, with KFP's protobuf types.

    Raises:
        Refused: it is none.
    """
    if not isinstance(content, dict):
        raise Refused(400, "no pipeline spec")
    pipeline = content.get("pipeline_spec", content)
    try:
        json_format.ParseDict(pipeline, PipelineSpec())
        json_format.ParseDict(content.get("platform_spec", {}) if "pipeline_spec" in content else {}, PlatformSpec())
    except json_format.ParseError as error:
        raise Refused(400, f"invalid pipeline spec: {error}") from None


def checked_parameters(spec: dict[str, Any], parameters: dict[str, Any]) -> None:
    """Checks the parameters of a run by name and type, as the API server does (`validatePipelineJobInputs`).

    Raises:
        Refused: one is unknown, missing or of another type.
    """
    known = spec.get("pipeline_spec", spec)["root"].get("inputDefinitions", {}).get("parameters", {})
    if unknown := sorted(set(parameters) - set(known)):
        raise Refused(400, f"unknown input parameters: {', '.join(unknown)}")
    for name, definition in known.items():
        if name not in parameters:
            if "defaultValue" not in definition and not definition.get("isOptional"):
                raise Refused(400, f"parameter {name} has neither default value nor user provided value")
            continue
        value, kind = parameters[name], definition["parameterType"]
        if not isinstance(value, _OF_PIPELINES[kind]) or isinstance(value, bool) != (kind == "BOOLEAN"):
            raise Refused(400, f"input parameter {name} requires type {kind}, but is {value!r}")


def _problems(kind: str, value: Any, path: str) -> list[str]:
    if value is None or kind == "object":
        return []
    if inner := re.fullmatch(r"list\[(.*)\]", kind):
        if not isinstance(value, list):
            return [f"{path} is no list"]
        return [problem for each in value for problem in _problems(inner[1], each, path)]
    if inner := re.fullmatch(r"dict\(str, (.*)\)", kind):
        if not isinstance(value, dict):
            return [f"{path} is no mapping"]
        return [problem for name, each in value.items() for problem in _problems(inner[1], each, f"{path}.{name}")]
    if kind in _PLAIN:
        # protobuf's JSON takes 64-bit numbers as texts and as numbers.
        fits = isinstance(value, (*_PLAIN[kind], int) if path.endswith("max_concurrency") else _PLAIN[kind])
        return [] if fits else [f"{path} is {value!r}, no {kind}"]
    if kind == "datetime":
        return [] if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", str(value)) else [f"{path} is no time: {value}"]
    model = getattr(kfp_server_api, kind)
    if not model.openapi_types:
        allowed = [text for name, text in vars(model).items() if name.isupper() and isinstance(text, str)]
        return [] if value in allowed else [f"{path} is {value!r}, none of {allowed}"]
    if not isinstance(value, dict):
        return [f"{path} is no {kind}"]
    types = {model.attribute_map[name]: inside for name, inside in model.openapi_types.items()}
    unknown = [f"unknown field {path}.{name}" for name in value if name not in types]
    known = [p for name, each in value.items() if name in types for p in _problems(types[name], each, f"{path}.{name}")]
    return unknown + known

"""Documents held against the models of kubeflow-trainer-api, which are made from the types of its CRDs, strictly.

The models themselves drop what they do not know, and so does a decoder of Kubernetes that is not strict; `kubectl
apply` is strict by default (`--validate=strict`) and refuses an unknown field.
"""

from __future__ import annotations

import types
import typing
from typing import Any

from pydantic import BaseModel, ValidationError


def problems_of_model(model: type[BaseModel], document: Any, path: str) -> list[str]:
    """Fields of a document that its model does not know, and values that are not of their types."""
    found = _unknown(model, document, path)
    try:
        model.from_dict(document)  # type: ignore[attr-defined]
    except (ValidationError, ValueError, TypeError, AttributeError) as error:
        found.append(f"{path}: {str(error).splitlines()[0]}")
    return found


def _unknown(kind: Any, document: Any, path: str) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if "actual_instance" in kind.model_fields:
            return []  # a number or a text: a quantity, a port
        if not isinstance(document, dict):
            return [f"{path} is no {kind.__name__}"]
        fields = {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
        found = [f"unknown field {path}.{name}" for name in document if name not in fields]
        known = [(fields[name], value, f"{path}.{name}") for name, value in document.items() if name in fields]
        return found + [problem for each in known for problem in _unknown(*each)]
    inner, origin = typing.get_args(kind), typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        return _unknown(inner[0], document, path) if document is not None else []
    if origin is list and isinstance(document, list):
        return [p for number, each in enumerate(document) for p in _unknown(inner[0], each, f"{path}[{number}]")]
    if origin is dict and isinstance(document, dict):
        return [p for name, each in document.items() for p in _unknown(inner[1], each, f"{path}.{name}")]
    return []

"""Parameters of a pipeline as a Python program gives them, in the form that the command line takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpu_pipelines.component_interface.parameter import plain
from gpu_pipelines.errors import InvalidRequestError


def parameters_given(others: Mapping[str, Any], arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Parameters of a pipeline, given as keywords and in a mapping.

    Args:
        others: those given as keywords.
        arguments: those that share a name with an option or an argument of the function.

    Raises:
        UserError: one is given twice.
    """
    if twice := [name for name in others if name in (arguments or {})]:
        raise InvalidRequestError(f"{', '.join(twice)} is given twice.", "Give it in arguments, or by itself.")
    return {**others, **(arguments or {})}


def assignments_of(values: Mapping[str, Any]) -> list[str]:
    """Parameters as the command line takes them; None means not given."""
    return [f"{name}={_text(name, value)}" for name, value in values.items() if value is not None]


def _text(name: str, value: Any) -> str:
    """A value as the command line takes it, so that the same checks apply."""
    value = plain(value)
    try:
        return value if isinstance(value, str) else json.dumps(value, default=plain)
    except (TypeError, ValueError):
        raise InvalidRequestError(f"{name} is {value!r:.80}.", "Give a text, a number, a list or a mapping.") from None

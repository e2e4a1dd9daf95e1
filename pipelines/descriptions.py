"""Descriptions of a pipeline's parameters, taken from its components so that they are written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def described_by(*components: Any) -> Callable[[Function], Function]:
    """Adds an `Args:` section to a pipeline function's docstring, from which KFP takes the descriptions.

    Args:
        components: KFP components; a parameter is described as the first of them describes its input of that name.
    """

    def describe(function: Function) -> Function:
        summary, _, rest = inspect.getdoc(function).partition("\n")  # type: ignore[union-attr]
        lines = [f"    {name}: {_description(name, components)}" for name in inspect.signature(function).parameters]
        function.__doc__ = "\n".join([summary, "", "Args:", *lines, rest])
        return function

    return describe


def _description(name: str, components: tuple[Any, ...]) -> str:
    for component in components:
        if name in component.component_spec.inputs:
            return " ".join(component.component_spec.inputs[name].description.split())
    raise LookupError(f"No component has an input {name!r} to describe the parameter of that name.")

"""The parameters of a pipeline as KFP takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from gpu_pipelines.component_interface.parameter import PYTHON_TYPES, Parameter
from gpu_pipelines.dag.callers import name_callers_without_source

#: Defaults for the pipelines that are built now, in place of their own, by the names of their parameters.
_DEFAULTS: ContextVar[Mapping[str, Any]] = ContextVar("defaults", default={})  # noqa: B039 (nothing changes it)


@contextmanager
def other_defaults(values: Mapping[str, Any]) -> Iterator[None]:
    """Gives the pipelines that are built in the block other defaults, if they have the parameters.

    Args:
        values: by name; a parameter that was required becomes optional.
    """
    token = _DEFAULTS.set(values)
    try:
        yield
    finally:
        _DEFAULTS.reset(token)


def inputs_from(component: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some values that are inputs of a component, by name."""
    return {name: values[name] for name in component.component_spec.inputs if name in values}


def with_parameters(
    parameters: Mapping[str, Parameter], note: str = "", *, has_outputs: bool = True
) -> Callable[[Callable[[dict[str, Any]], Any]], Callable[..., Any]]:
    """Makes KFP see a pipeline function as one with these parameters; the function gets them as one mapping.

    KFP takes names, types and defaults from the signature, and descriptions from the section `Args:` of the docstring.

    Args:
        parameters: by name.
        note: text of its description after the function's own summary.
        has_outputs: whether the function's results are the outputs of the pipeline; else they are discarded.
    """

    def decorate(function: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
        def pipeline(*values: Any) -> Any:
            returned = function(dict(zip(ordered, values, strict=True)))
            return returned if has_outputs else None

        name_callers_without_source()
        # In a signature, parameters without a default come first.
        own = {
            name: replace(parameters[name], default=value)
            for name, value in _DEFAULTS.get().items()
            if name in parameters
        }
        own = {name: replace(each, optional=True) for name, each in own.items()}
        ordered = dict(sorted({**parameters, **own}.items(), key=lambda named: named[1].optional))
        listed = [_in_signature(name, parameter) for name, parameter in ordered.items()]
        returned = inspect.signature(function).return_annotation if has_outputs else None
        summary, _, rest = str(inspect.getdoc(function)).partition("\n")
        rest = rest if has_outputs else ""
        lines = [f"    {name}: {_indented(parameter.text)}" for name, parameter in ordered.items()]
        pipeline.__name__ = function.__name__
        pipeline.__doc__ = "\n".join([f"{summary} {note}".rstrip(), "", "Args:", *lines, rest])
        pipeline.__signature__ = inspect.Signature(listed, return_annotation=returned)  # type: ignore[attr-defined]
        return pipeline

    return decorate


def _in_signature(name: str, parameter: Parameter) -> inspect.Parameter:
    default = parameter.default if parameter.optional else inspect.Parameter.empty
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, default=default, annotation=PYTHON_TYPES[parameter.type])


def _indented(text: str) -> str:
    """A description of several lines, indented for the docstring of a function."""
    return text.replace("\n", "\n        ")

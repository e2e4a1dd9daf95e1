"""A pipeline's parameters, taken from its components, so that each is named, typed, defaulted and described once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parameter:
    """A parameter of a pipeline.

    Attributes:
        type: as KFP takes it in an annotation.
        default: its value where none is given.
        description: what it means, with units and allowed values.
        required: it has to be given; there is no default then.
    """

    type: Any
    default: Any
    description: str
    required: bool = False


def parameters_of(*components: Any, without: Collection[str] = ()) -> dict[str, Parameter]:
    """The input parameters of KFP components by name; of those of one name the first component's.

    Args:
        components: KFP components made by `@dsl.component`.
        without: names of those that the pipeline fills in itself.
    """
    found: dict[str, Parameter] = {}
    for component in components:
        types = inspect.signature(component.python_func).parameters
        for name, spec in (component.component_spec.inputs or {}).items():
            if name not in without and not _is_artifact(spec):
                described = " ".join(spec.description.split())
                found.setdefault(name, Parameter(types[name].annotation, spec.default, described))
    return found


def inputs_from(component: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some values by name that are inputs of a component."""
    return {name: values[name] for name in component.component_spec.inputs if name in values}


def with_parameters(
    parameters: Mapping[str, Parameter], note: str = ""
) -> Callable[[Callable[[dict[str, Any]], Any]], Callable[..., Any]]:
    """Lets KFP see a pipeline function as one with these parameters; the function gets them as one mapping.

    KFP takes names, types and defaults from the signature, and descriptions from the section `Args:` of the docstring.

    Args:
        parameters: by name.
        note: what its description says after the function's own summary.
    """

    def decorate(function: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
        def pipeline(*values: Any) -> Any:
            return function(dict(zip(ordered, values, strict=True)))

        # In a signature, parameters without a default come first.
        ordered = dict(sorted(parameters.items(), key=lambda named: not named[1].required))
        listed = [_in_signature(name, parameter) for name, parameter in ordered.items()]
        returned = inspect.signature(function).return_annotation
        summary, _, rest = str(inspect.getdoc(function)).partition("\n")
        lines = [f"    {name}: {_indented(parameter.description)}" for name, parameter in ordered.items()]
        pipeline.__name__ = function.__name__
        pipeline.__doc__ = "\n".join([f"{summary} {note}".rstrip(), "", "Args:", *lines, rest])
        pipeline.__signature__ = inspect.Signature(listed, return_annotation=returned)  # type: ignore[attr-defined]
        return pipeline

    return decorate


def _in_signature(name: str, parameter: Parameter) -> inspect.Parameter:
    default = inspect.Parameter.empty if parameter.required else parameter.default
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, default=default, annotation=parameter.type)


def _indented(text: str) -> str:
    """A description of several lines as the docstring of a function has it."""
    return text.replace("\n", "\n        ")


def _is_artifact(spec: Any) -> bool:
    """KFP writes the type of an artifact with its version, as in system.Model@0.0.1."""
    return "@" in spec.type

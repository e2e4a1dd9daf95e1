"""The parameter `advanced` of this project's pipelines, whose fields are given like parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_pipelines.component_interface.parameter import Parameter
from gpu_pipelines.driver.parameters.interface import as_stored
from gpu_pipelines.driver.parameters.texts import REMEDIES, TYPES, converted

#: The parameter of this project's pipelines whose fields are parameters as well.
ADVANCED = "advanced"


def fields_of(pipeline: str, known: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The fields of the parameter `advanced` of a pipeline of this project; none for another pipeline.

    Args:
        pipeline: its name, in the form of the command line or of KFP.
        known: its own parameters.
    """
    from gpu_pipelines.dag import PIPELINES, load_request

    name = pipeline.replace("-", "_")
    if name not in PIPELINES or ADVANCED not in known:
        return {}
    from gpu_pipelines.dag.advanced import fields_of_advanced

    return fields_of_advanced(load_request(name).SETTINGS.values())


def with_defaults_of_file(fields: Mapping[str, Parameter], known: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The fields of `advanced` with the defaults that a pipeline was compiled with, in place of those of the steps.

    Args:
        fields: see `fields_of`.
        known: the pipeline's own parameters.
    """
    inside = known[ADVANCED].default or {} if fields else {}
    return {
        name: replace(each, default=as_stored(each.type, inside[name])) if name in inside else each
        for name, each in fields.items()
    }


def in_place_of_advanced(known: Mapping[str, Parameter], fields: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The parameters that can be given: the pipeline's own, with the fields of `advanced` in its place.

    Args:
        known: the pipeline's own parameters.
        fields: see `fields_of`; without any, the parameters stay as they are.
    """
    if not fields:
        return dict(known)
    return {**{name: each for name, each in known.items() if name != ADVANCED}, **fields}


def left_to_steps(
    fields: Mapping[str, Parameter], known: Mapping[str, Parameter], taken: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of fields that have a default in the file, and that a run with an `advanced` of its own leaves out.

    Such a run gets the default of the step: its `advanced` replaces the file's.

    Args:
        fields: see `fields_of`.
        known: the pipeline's own parameters.
        taken: the values of the run, as the pipeline takes them.
    """
    inside = known[ADVANCED].default or {} if fields and ADVANCED in taken else {}
    return {name: fields[name].default for name in inside if name in fields}


def as_taken(
    arguments: Mapping[str, Any], known: Mapping[str, Parameter], fields: Mapping[str, Parameter]
) -> dict[str, Any]:
    """The values as the pipeline takes them: fields of `advanced` are in `advanced` if they differ from their defaults.

    Args:
        arguments: the values, by the parameters' own names.
        known: the pipeline's own parameters.
        fields: those of `advanced`; see `fields_of`.
    """
    if not fields:
        return dict(arguments)
    others = {name: arguments[name] for name in sorted(fields) if arguments[name] != fields[name].default}
    return {**{name: arguments[name] for name in known if name != ADVANCED}, ADVANCED: others}


def fields_opened(texts: Sequence[tuple[str, Any]], problems: list[str]) -> Iterator[tuple[str, Any]]:
    """Names and values, with the fields of `advanced` in its place.

    Args:
        texts: names and values, as they were given.
        problems: gets what is wrong with `advanced`.
    """
    for name, value in texts:
        if name != ADVANCED:
            yield name, value
            continue
        try:
            inside = converted("Dict", value)
        except (ValueError, RecursionError):
            problems.append(f"{name} takes {TYPES['Dict']}; got {str(value)[:80]!r}.{REMEDIES['Dict']}")
            continue
        for field, held in inside.items():
            yield field, held if isinstance(held, (str, list, dict)) else json.dumps(held)

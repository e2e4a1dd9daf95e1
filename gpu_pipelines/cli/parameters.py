"""`gpu-pipelines parameters`: the parameters of a pipeline for -p, step by step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli.application import print_json
from gpu_pipelines.cli.target_options import AsJson
from gpu_pipelines.dag import BY_SCRIPT

if TYPE_CHECKING:
    from gpu_pipelines.component_interface.parameter import Parameter

_KINDS = {
    "String": "text",
    "Integer": "whole number",
    "Float": "number",
    "Boolean": "true or false",
    "List": "list of texts",
    "Dict": "mapping",
}


def parameters(
    pipeline: Annotated[str, typer.Argument(help="Name of a pipeline, FILE.py, FILE.py:function or a compiled file.")],
    task: Annotated[str | None, typer.Option(help="Show the defaults of this task.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the parameters of a pipeline: name, type, default and meaning of what run takes with -p.

    They are given as -p NAME=VALUE, or as a YAML mapping with --params FILE.
    """
    from gpu_pipelines.driver.parameters.known import parameters_by_step

    steps = parameters_by_step(pipeline, task)
    if as_json:
        print_json({"pipeline": pipeline, "parameters": _documents(steps)})
        return
    _print(steps)
    if by_script := BY_SCRIPT.get(pipeline):
        print("with -p script=…:", f"  gpu-pipelines parameters {by_script}", sep="\n")


def _documents(steps: Mapping[str, Mapping[str, Parameter]]) -> list[dict[str, Any]]:
    from gpu_pipelines.driver.parameters.known import OF_THE_PIPELINE

    return [
        {
            "name": name,
            "step": None if step == OF_THE_PIPELINE else step,
            "type": parameter.type,
            "optional": parameter.optional,
            "default": parameter.default,
            "description": parameter.text,
        }
        for step, of_step in steps.items()
        for name, parameter in of_step.items()
    ]


def _print(steps: Mapping[str, Mapping[str, Parameter]]) -> None:
    from gpu_pipelines.terminal import width_of, wrapped

    width = min(width_of(), 110)
    for step, of_step in steps.items():
        print(f"{step}:")
        for name, parameter in of_step.items():
            default = f"default {_shown(parameter.default)}" if parameter.optional else "must be given"
            print(f"  {name}  ({_KINDS.get(parameter.type, parameter.type)}; {default})")
            if parameter.text:
                print(wrapped(parameter.text, first=" " * 6, width=width))
        print()


def _shown(value: Any) -> str:
    """A default in the form for -p."""
    if value in (None, "", [], {}):
        return "empty"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, bool | dict) else str(value)

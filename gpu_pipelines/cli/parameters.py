"""`gpu-pipelines parameters`: what a pipeline can be told with -p, step by step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpu_pipelines.cli.application import print_json
from gpu_pipelines.cli.target_options import AsJson
from gpu_pipelines.errors import UserError

if TYPE_CHECKING:
    from gpu_pipelines.component_interface.parameter import Parameter

#: The steps in their order; the first that takes a parameter has it. What none of them takes is the pipeline's.
STEPS = (
    "prepare_data",
    "train_model",
    "run_training_script",
    "evaluate_checkpoints",
    "upload_model",
    "check_for_new_data",
)
_OF_THE_PIPELINE = "pipeline"
_KINDS = {
    "String": "text",
    "Integer": "whole number",
    "Float": "number",
    "Boolean": "true or false",
    "List": "list of texts",
    "Dict": "mapping",
}


def parameters(
    pipeline: Annotated[str, typer.Argument(help="Name of a pipeline, or a compiled file.")],
    task: Annotated[str | None, typer.Option(help="Show the defaults of this task.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the parameters of a pipeline: name, type, default and meaning of what run takes with -p.

    They are given as -p NAME=VALUE, or as a YAML mapping with --params FILE.
    """
    from gpu_pipelines.driver.arguments import with_defaults_of_task

    known = known_parameters(pipeline)
    if task is not None:
        _require_task(task, known, pipeline)
        known = with_defaults_of_task(known, task)
    steps = _by_step(known)
    if as_json:
        print_json({"pipeline": pipeline, "parameters": _documents(steps)})
        return
    _print(steps)


def known_parameters(pipeline: str) -> dict[str, Parameter]:
    """The parameters of a pipeline, by name.

    Args:
        pipeline: its name, as it is on this machine; or a compiled file.

    Raises:
        UserError: there is no such pipeline or file.
    """
    from gpu_pipelines.driver.arguments import compiled_in, parameters_of_pipeline, parameters_of_spec
    from gpu_pipelines.targets.messages import FILE_SUFFIXES

    if not pipeline.endswith(FILE_SUFFIXES):
        from gpu_pipelines.dag import load_pipeline
        from gpu_pipelines.targets.local.target import LocalTarget

        return _opened(pipeline, parameters_of_pipeline(load_pipeline(pipeline).build(LocalTarget(), None)))
    from gpu_pipelines.targets.compiled import documents_of, text_of_file

    text = text_of_file(pipeline)
    try:
        spec = documents_of(text)[0]
        task = compiled_in(spec).get("task", "")
        return _opened(str(spec["pipelineInfo"]["name"]), parameters_of_spec(spec), task)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError):
        raise UserError(f"The file {pipeline} is no compiled pipeline.", "gpu-pipelines compile makes one.") from None


def _opened(pipeline: str, known: Mapping[str, Parameter], task: str = "") -> dict[str, Parameter]:
    """Parameters with the fields of `advanced` in its place: -p takes each by its own name.

    Args:
        pipeline: name of the pipeline.
        known: its own parameters.
        task: the one that it was compiled for, whose fields alone are of use; empty for all.
    """
    from gpu_pipelines.dag.advanced import is_of
    from gpu_pipelines.driver.arguments import ADVANCED, fields_of

    fields = fields_of(pipeline, known)
    if not fields:
        return dict(known)
    fields = {name: field for name, field in fields.items() if is_of(name, task)}
    return {**{name: each for name, each in known.items() if name != ADVANCED}, **fields}


def _require_task(task: str, known: Mapping[str, Parameter], pipeline: str) -> None:
    from gpu_pipelines.tasks.tasks import task_problems

    if "task" not in known:
        raise UserError(f"{pipeline} has no parameter task.", "Leave out --task.")
    if problems := task_problems(task):
        raise UserError.of_all(problems)


def _by_step(known: Mapping[str, Parameter]) -> dict[str, dict[str, Parameter]]:
    """The parameters below the first step that takes them, in the order of the pipeline."""
    from gpu_pipelines.component_interface.catalog import load_component

    inputs = {name: set(load_component(name).component_spec.inputs or ()) for name in STEPS}
    steps: dict[str, dict[str, Parameter]] = {}
    for name, parameter in known.items():
        step = next((step for step, names in inputs.items() if name in names), _OF_THE_PIPELINE)
        steps.setdefault(step, {})[name] = parameter
    return steps


def _documents(steps: Mapping[str, Mapping[str, Parameter]]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "step": None if step == _OF_THE_PIPELINE else step,
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
            print(wrapped(parameter.text, first=" " * 6, width=width))
        print()


def _shown(value: Any) -> str:
    """A default as it would be written after -p."""
    if value in (None, "", [], {}):
        return "empty"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, bool | dict) else str(value)

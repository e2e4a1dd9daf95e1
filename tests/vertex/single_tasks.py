"""One task of a compiled pipeline, by itself: what the service would give its container."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from gpu_pipelines.emulator.pipelines.payload import (
    _EMPTY,
    _PARAMETER,
    PipelineRun,
    as_stored,
    executor_input_with,
    resolved_texts,
)

#: A compiled file, or what is in it.
Pipeline = Path | Mapping[str, Any]


def tasks_of(spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """All tasks of a pipeline and of its sub-DAGs, by name."""
    dags = [part["dag"] for part in (spec["root"], *spec["components"].values()) if "dag" in part]
    return {name: task for dag in dags for name, task in dag["tasks"].items()}


def executor_input_of(
    pipeline: Pipeline,
    task: str,
    run: PipelineRun,
    artifacts: Mapping[str, str | Mapping[str, Any]],
    values: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The executor input of a task.

    Args:
        pipeline: a compiled pipeline.
        task: name of the task.
        run: the run that it is in.
        artifacts: the input artifacts by name, each whole or by its URI.
        values: parameters that are outputs of other tasks, or inputs of a part of the pipeline, by the input's name.
    """
    spec = _spec(pipeline)
    placed, component = _task_and_component(spec, task)
    parameters = component["inputDefinitions"].get("parameters", {})
    given = {**_parameters(spec, placed, parameters, run, task), **(values or {})}
    return executor_input_with(component, task, run, given, {name: [held] for name, held in artifacts.items()})


def container_command(pipeline: Pipeline, task: str, run: PipelineRun, executor_input: Mapping[str, Any]) -> list[str]:
    """Command and arguments of a task's container, with every placeholder resolved."""
    spec = _spec(pipeline)
    component = _task_and_component(spec, task)[1]
    container = spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
    return resolved_texts(
        [*container.get("command", []), *container.get("args", [])], component, task, run, executor_input
    )


def payload_of(pipeline: Pipeline, task: str, run: PipelineRun, executor_input: Mapping[str, Any]) -> str:
    """The CustomJob that the launcher of a task is given, as JSON."""
    arguments = container_command(pipeline, task, run, executor_input)
    return arguments[arguments.index("--payload") + 1]


def image_of(pipeline: Pipeline, task: str, run: PipelineRun) -> str:
    """The image of a task's container."""
    spec = _spec(pipeline)
    placed, component = _task_and_component(spec, task)
    image = spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]["image"]
    parameters = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    return str(_with_inner(image, placed, run, parameters))


def _spec(pipeline: Pipeline) -> Mapping[str, Any]:
    return _loaded(pipeline) if isinstance(pipeline, Path) else pipeline


@lru_cache(maxsize=4)
def _loaded(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load(file.read_bytes(), yaml.CSafeLoader)
    return loaded


def _task_and_component(spec: Mapping[str, Any], task: str) -> tuple[dict[str, Any], dict[str, Any]]:
    placed = tasks_of(spec)[task]
    return placed, spec["components"][placed["componentRef"]["name"]]


def _parameters(
    spec: Mapping[str, Any], task: Mapping[str, Any], wanted: Mapping[str, Any], run: PipelineRun, name: str
) -> dict[str, Any]:
    pipeline = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    found = {}
    for parameter, definition in wanted.items():
        given = task.get("inputs", {}).get("parameters", {}).get(parameter, {})
        if "componentInputParameter" in given:
            outer = given["componentInputParameter"]
            value = run.parameters.get(outer, pipeline.get(outer, {}).get("defaultValue"))
        elif "runtimeValue" in given:
            value = _with_inner(given["runtimeValue"]["constant"], task, run, pipeline)
        else:
            value = definition.get("defaultValue", _EMPTY.get(definition["parameterType"]))
        if isinstance(value, str):
            for placeholder, text in run.placeholders(name).items():
                value = value.replace(placeholder, text)
        found[parameter] = as_stored(value, definition)
    return found


def _with_inner(value: Any, task: Mapping[str, Any], run: PipelineRun, pipeline: Mapping[str, Any]) -> Any:
    """A constant in which texts that stand for parameters of the pipeline are these, however deep they are in it."""
    if isinstance(value, dict):
        return {key: _with_inner(held, task, run, pipeline) for key, held in value.items()}
    if isinstance(value, list):
        return [_with_inner(held, task, run, pipeline) for held in value]
    match = _PARAMETER.fullmatch(value) if isinstance(value, str) else None
    given = task["inputs"]["parameters"].get(match[1], {}) if match else {}
    if "componentInputParameter" not in given:
        return value
    outer = given["componentInputParameter"].removeprefix("pipelinechannel--")
    return run.parameters.get(outer, pipeline.get(outer, {}).get("defaultValue"))

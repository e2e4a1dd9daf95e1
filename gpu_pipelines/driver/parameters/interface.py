"""The parameters of a pipeline: as KFP has built it, and as its compiled file has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpu_pipelines.component_interface.parameter import Parameter
from gpu_pipelines.dag.placement import CHECKS
from gpu_pipelines.numbers import as_number, as_protobuf_writes
from gpu_pipelines.targets.spec_steps import tasks_in
from gpu_pipelines.tasks.tasks import defaults_of_task

#: The types by their names in a compiled file.
_COMPILED_TYPES = {
    "STRING": "String",
    "NUMBER_INTEGER": "Integer",
    "NUMBER_DOUBLE": "Float",
    "BOOLEAN": "Boolean",
    "LIST": "List",
    "STRUCT": "Dict",
}


def parameters_of_pipeline(pipeline: Any) -> dict[str, Parameter]:
    """The parameters of a KFP pipeline, by name."""
    inputs = pipeline.component_spec.inputs or {}
    return {
        name: Parameter(spec.type, spec.default, spec.optional, spec.description or "") for name, spec in inputs.items()
    }


def with_defaults_of_task(known: Mapping[str, Parameter], task: str) -> dict[str, Parameter]:
    """Parameters with the defaults of a task in place of those of the default task.

    A default that a pipeline has changed stays, such as one in a file that somebody else compiled.

    Args:
        known: the parameters by name.
        task: name of the task.
    """
    if "task" not in known or not isinstance(known["task"].default, str):
        return dict(known)
    before, now = defaults_of_task(known["task"].default), defaults_of_task(task)
    changed = {
        name: replace(known[name], default=value)
        for name, value in now.items()
        if name in known and known[name].default == before.get(name)
    }
    return {**known, "task": replace(known["task"], default=task), **changed}


def parameters_of_spec(spec: Mapping[str, Any]) -> dict[str, Parameter]:
    """The parameters of a compiled pipeline, by name."""
    definitions = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    return {name: _parameter(definition) for name, definition in definitions.items()}


def compiled_in(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a compiled pipeline that are not parameters: its task, and the number of processes that train.

    Args:
        spec: the pipeline; empty if a target runs it as it was built, and then nothing is known.
    """
    for given in [task.get("inputs", {}).get("parameters", {}) for name, task in tasks_in(spec) if name == CHECKS]:
        values = {name: given.get(name, {}).get("runtimeValue", {}).get("constant") for name in ("task", "processes")}
        if any(values.values()):
            return {"processes": int(values["processes"] or 0), **({"task": values["task"]} if values["task"] else {})}
    return {}


def _parameter(definition: Mapping[str, Any]) -> Parameter:
    given = str(definition.get("parameterType"))
    kind, default = _COMPILED_TYPES.get(given, given), definition.get("defaultValue")
    optional = definition.get("isOptional", False) or default is not None
    return Parameter(kind, as_stored(kind, default), optional, definition.get("description", ""))


def as_stored(kind: str, value: Any) -> Any:
    """A value of a compiled file or of the service, which write every number with a decimal point."""
    if kind == "Integer":
        return as_number(int, value)
    return as_protobuf_writes(value) if isinstance(value, list | dict) else value

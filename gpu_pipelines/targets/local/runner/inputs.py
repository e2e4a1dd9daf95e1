"""What steps and nested pipelines get as inputs, in place of what KFP's local runner gives them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpu_pipelines.emulator.pipelines.constants import filled
from gpu_pipelines.numbers import as_protobuf_writes


def with_nulls(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Allows JSON's null as well, which a step may leave in a list or a dictionary."""
    kind = type(original(""))
    return lambda value: kind(null_value=0) if value is None else original(value)


def with_all_of_the_run(original: Callable[..., str]) -> Callable[..., str]:
    """KFP's placeholders about the run: its runner leaves three out, names the run anew for each turn, and makes no
    folder of the workspace.
    """
    from kfp import dsl
    from kfp.local import config

    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    times = (dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER, dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER)

    def resolve(element: str, *, pipeline_resource_name: str, **named: Any) -> str:
        run = pipeline_resource_name.partition("/")[0]
        for placeholder, value in ((dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER, run), *((each, now) for each in times)):
            element = element.replace(placeholder, value)
        if dsl.WORKSPACE_PATH_PLACEHOLDER in element:
            Path(config.LocalExecutionConfig.instance.workspace_root).mkdir(parents=True, exist_ok=True)
        return original(element, pipeline_resource_name=run, **named)

    return resolve


def whole_numbers(original: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """What a step is given, in which whole numbers stay whole."""

    def written(executor_input: Any, component_spec: Any) -> Any:
        # Null is not a whole number, and for missing inputs KFP's executor uses the function's defaults.
        told = type(executor_input)()
        told.CopyFrom(executor_input)
        for name, value in executor_input.inputs.parameter_values.items():
            if value.WhichOneof("kind") in (None, "null_value"):
                del told.inputs.parameter_values[name]
        return as_protobuf_writes(original(executor_input=told, component_spec=component_spec))

    return written


def with_values_alone(original: Callable[..., Any]) -> Callable[..., Any]:
    """The inputs of a step without those that have no value: it has its own defaults for these."""

    def construct(*, arguments: dict[str, Any], **named: Any) -> Any:
        return original(arguments={name: each for name, each in arguments.items() if each is not None}, **named)

    return construct


def with_optional_ones(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The inputs of a pipeline; an optional one that has neither a value nor a default is None."""

    def join(dag_arguments: dict[str, Any], dag_inputs_spec: Any) -> dict[str, Any]:
        known = [*dag_inputs_spec.parameters.items(), *dag_inputs_spec.artifacts.items()]
        nothing = {name: None for name, each in known if each.is_optional and _default(each) is None}
        return original(dag_arguments={**nothing, **dag_arguments}, dag_inputs_spec=dag_inputs_spec)

    return join


def with_own_defaults(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The inputs of a nested pipeline: artifacts also if it gets nothing else, and its own default for one that is not
    given, whatever is around it.
    """
    from kfp.local.orchestrator.orchestrator_utils import OrchestratorUtils

    def build(*, task_spec: Any, component_spec: Any, io_store: Any, **named: Any) -> dict[str, Any]:
        made = original(task_spec=task_spec, component_spec=component_spec, io_store=io_store, **named)
        made.update(OrchestratorUtils.make_task_arguments(alone(task_spec.inputs, "artifacts"), io_store))
        wanted, told = component_spec.input_definitions, task_spec.inputs
        for definitions, given in ((wanted.parameters, told.parameters), (wanted.artifacts, told.artifacts)):
            untold = [(name, each) for name, each in definitions.items() if each.is_optional and name not in given]
            made.update({name: _default(each) for name, each in untold})
        return made

    return build


def _default(definition: Any) -> Any:
    """The default of an input; None if it has none, like every artifact."""
    from kfp.local.executor_output_utils import pb2_value_to_python

    has_one = "default_value" in definition.DESCRIPTOR.fields_by_name and definition.HasField("default_value")
    return pb2_value_to_python(definition.default_value) if has_one else None


def with_outputs_filled_in(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The inputs of a task, with outputs filled in inside texts, lists and dictionaries."""

    def make(task_inputs_spec: Any, io_store: Any) -> dict[str, Any]:
        made = original(task_inputs_spec, io_store)
        constants = {name for name, each in task_inputs_spec.parameters.items() if each.HasField("runtime_value")}
        return {name: filled(value, made, is_text=True) if name in constants else value for name, value in made.items()}

    return make


def without_unmade(task_spec: Any, components: Any, io_store: Any) -> Any:
    """A task without optional inputs of which no step has made the value, such as one that failed."""
    told = type(task_spec)()
    told.CopyFrom(task_spec)
    wanted, given = components[task_spec.component_ref.name].input_definitions, told.inputs
    for definitions, inputs, kind in (
        (wanted.parameters, given.parameters, "parameter"),
        (wanted.artifacts, given.artifacts, "artifact"),
    ):
        optional = [name for name, each in definitions.items() if each.is_optional and name in inputs]
        for name in optional:
            source = getattr(inputs[name], f"task_output_{kind}")
            output = getattr(source, f"output_{kind}_key")
            if source.producer_task and not is_made(source.producer_task, output, io_store):
                del inputs[name]
    return told


def is_made(task: str, output: str, io_store: Any) -> bool:
    try:
        io_store.get_task_output(task, output)
    except ValueError:
        return False
    return True


def alone(inputs: Any, kind: str) -> Any:
    """The parameters or the artifacts of a task's inputs."""
    kept = type(inputs)()
    kept.CopyFrom(inputs)
    kept.ClearField("artifacts" if kind == "parameters" else "parameters")
    return kept

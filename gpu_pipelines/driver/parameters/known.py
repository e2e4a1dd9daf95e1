"""The parameters of a pipeline, with the fields of `advanced`, and the step that takes each."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_pipelines.component_interface.catalog import load_component
from gpu_pipelines.component_interface.parameter import Parameter
from gpu_pipelines.driver.parameters.advanced_fields import fields_of, in_place_of_advanced, with_defaults_of_file
from gpu_pipelines.driver.parameters.interface import (
    compiled_in,
    parameters_of_pipeline,
    parameters_of_spec,
    with_defaults_of_task,
)
from gpu_pipelines.errors import UserError

#: The steps in order; a parameter belongs to the first that takes it, or to the pipeline if none does.
STEPS = (
    "prepare_data",
    "train_model",
    "tune_model",
    "run_training_script",
    "evaluate_checkpoints",
    "upload_model",
    "check_for_new_data",
)
OF_THE_PIPELINE = "pipeline"


def known_parameters(pipeline: str) -> dict[str, Parameter]:
    """The parameters of a pipeline, by name.

    Args:
        pipeline: its name, as it is on this machine; or `FILE.py`, `FILE.py:function`, or a compiled file.

    Raises:
        UserError: there is no such pipeline or file.
    """
    from gpu_pipelines.targets.messages import is_own, is_python

    if not is_own(pipeline):
        from gpu_pipelines.dag import load_pipeline
        from gpu_pipelines.targets.local.target import LocalTarget

        return _opened(pipeline, parameters_of_pipeline(load_pipeline(pipeline).build(LocalTarget(), None)))
    from gpu_pipelines.targets.compiled import compiled, parsed_documents, text_of_file
    from gpu_pipelines.targets.own.file import pipeline_in

    text = compiled(pipeline_in(pipeline)) if is_python(pipeline) else text_of_file(pipeline)
    try:
        spec = parsed_documents(text, f"The file {pipeline}")[0]
        task = compiled_in(spec).get("task", "")
        return _opened(str(spec["pipelineInfo"]["name"]), parameters_of_spec(spec), task)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError):
        raise UserError(
            f"The file {pipeline} is not a compiled pipeline.", "gpu-pipelines compile makes one."
        ) from None


def _opened(pipeline: str, known: Mapping[str, Parameter], task: str = "") -> dict[str, Parameter]:
    """Parameters with the fields of `advanced` in its place: -p takes each by its own name.

    Args:
        pipeline: name of the pipeline.
        known: its own parameters.
        task: the one that it was compiled for, to keep only its fields; empty for all.
    """
    from gpu_pipelines.dag.advanced import is_of

    fields = fields_of(pipeline, known)
    if not fields:
        return dict(known)
    fields = {name: field for name, field in with_defaults_of_file(fields, known).items() if is_of(name, task)}
    return in_place_of_advanced(known, fields)


def parameters_by_step(pipeline: str, task: str | None = None) -> dict[str, dict[str, Parameter]]:
    """The parameters of a pipeline by name, below the first step that takes them, in the order of the pipeline.

    Args:
        pipeline: as `known_parameters` takes it.
        task: the task whose defaults the parameters have; None for the defaults of the pipeline.

    Raises:
        UserError: there is no such pipeline or task, or the pipeline has no parameter task.
    """
    known = known_parameters(pipeline)
    if task is not None:
        from gpu_pipelines.tasks.tasks import task_problems

        if "task" not in known:
            raise UserError(f"{pipeline} has no parameter task.", "Leave out --task.")
        if problems := task_problems(task):
            raise UserError.of_all(problems)
        known = with_defaults_of_task(known, task)
    inputs = {name: set(load_component(name).component_spec.inputs or ()) for name in STEPS}
    steps: dict[str, dict[str, Parameter]] = {}
    for name, parameter in known.items():
        step = next((step for step, names in inputs.items() if name in names), OF_THE_PIPELINE)
        steps.setdefault(step, {})[name] = parameter
    return steps

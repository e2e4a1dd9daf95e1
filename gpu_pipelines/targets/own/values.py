"""The parameters of this project's components in a user's pipeline: what a target fills in, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_pipelines.component_interface.catalog import settings_of
from gpu_pipelines.component_interface.default_registry import DEFAULT_REGISTRY
from gpu_pipelines.component_interface.step import THIS_TRAINING, fields_from, with_advanced
from gpu_pipelines.dag.placement import (
    CHECKS,
    EVALUATES,
    LOOKING_STEPS,
    PREDICTS,
    PREPARES,
    RUNS_SCRIPT,
    TRAINS,
    TUNES,
    UPLOADS,
    WATCHES,
    Placement,
    seen_by_check,
)
from gpu_pipelines.dag.places import DATA, DIRECTORY, OUTPUT, REGISTRY, Place, places_of_script, places_of_space
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.errors import UserError
from gpu_pipelines.prediction.settings import PredictSettings
from gpu_pipelines.targets.own.steps import Step
from gpu_pipelines.targets.spec_steps import tasks_in
from gpu_pipelines.tasks.tasks import task_problems
from gpu_pipelines.training.script.settings import ScriptSettings

#: The parameters that name places, with the kind of each place.
_PLACES = {
    PREPARES: {
        "source": DATA,
        "test_source": DATA,
        "image_root": DATA,
        "tokenizer": DIRECTORY,
        "image_processor": DIRECTORY,
    },
    TRAINS: {"model": DIRECTORY, "checkpoint_uri": DIRECTORY},
    TUNES: {"model": DIRECTORY, "checkpoint_uri": DIRECTORY},
    CHECKS: {"source": DATA, "tokenizer": DIRECTORY, "model": DIRECTORY, "registry": REGISTRY},
    WATCHES: {
        "source": DATA,
        "drift_source": DATA,
        "tokenizer": DIRECTORY,
        "model": DIRECTORY,
        "registry": REGISTRY,
    },
    EVALUATES: {"registry": REGISTRY},
    UPLOADS: {"registry": REGISTRY},
    PREDICTS: {"source": DATA, "image_root": DATA, "registry": REGISTRY, "output": OUTPUT},
}
#: Names in `advanced` that are not fields of the settings, and that steps take from there themselves.
_ADVANCED_OF_STEPS = ("checkpoint_uri", "test_source_fingerprint")
#: Placeholder for data of an earlier step, which is not known before the run.
_OF_A_STEP = "data"


def fill_in(steps: Sequence[Step], target: Placement, checkpoints: str) -> None:
    """Gives this project's steps in a user's pipeline the values that its own pipelines fill in, if they are not given.

    Args:
        steps: steps of the pipeline, which is changed.
        target: where it runs.
        checkpoints: folder of the checkpoints of all trainings: the same place over restarts of a run.
    """
    for step in steps:
        if not step.is_ours:
            continue
        if step.trains:
            # The turns of a loop are distinguished by their parameters.
            step.give("checkpoint_uri", f"{checkpoints}/{step.name}{f'/{THIS_TRAINING}' if step.in_loop else ''}")
        if step.component in (*LOOKING_STEPS, EVALUATES, UPLOADS, PREDICTS):
            step.give("registry", target.registry)
        if step.component == CHECKS:
            for name, value in seen_by_check(target).items():
                step.give(name, value)
        if step.component == UPLOADS:
            step.give("pipeline_job", target.pipeline_job)
            if target.encryption_key:
                step.give("encryption_key", target.encryption_key)
        if step.component == PREPARES and "source_fingerprint" not in step.inputs:
            # Otherwise a service would take changed data for that of an earlier run.
            step.task["cachingOptions"] = {}


def problems_of(steps: Sequence[Step], arguments: Mapping[str, Any]) -> list[str]:
    """What is wrong with the parameters of this project's components, as far as they are known before a run.

    Args:
        steps: steps of the pipeline.
        arguments: the values of the pipeline's own parameters.
    """
    ours = [(step, *step.known(arguments)) for step in steps if step.is_ours]
    tasks = {values.get("task", _default(step, "task")) for step, values, _ in ours if step.component == PREPARES}
    task = str(next(iter(tasks))) if len(tasks) == 1 else ""
    found = []
    for step, values, unknown in ours:
        if not unknown - {"advanced"}:
            found += [f"{step.name}: {problem}" for problem in _problems(step, values, task)]
    return found


def _problems(step: Step, values: Mapping[str, Any], task: str) -> list[str]:
    try:
        settings = _settings(step, values)
    except UserError as error:
        return [error.in_one_line]
    if step.component == PREPARES and _reads_artifact(step, "data"):
        settings = replace(settings, source=_OF_A_STEP)
    if not hasattr(settings, "problems"):
        return []
    if step.component not in (TRAINS, TUNES, EVALUATES):
        found: list[str] = settings.problems()
        return found
    return settings.problems(task) if task and not task_problems(task) else []


def _settings(step: Step, values: Mapping[str, Any]) -> Any:
    settings = fields_from(settings_of(step.component.replace("-", "_")), values)
    return with_advanced(settings, values.get("advanced") or {}, *_ADVANCED_OF_STEPS)


def _reads_artifact(step: Step, name: str) -> bool:
    return name in step.task.get("inputs", {}).get("artifacts", {})


def sources_of(steps: Sequence[Step], arguments: Mapping[str, Any]) -> Iterator[PrepareSettings]:
    """The sources of preparations that exist before a run: not in branches, and not after a step that may write them.

    Args:
        steps: steps of the pipeline, whose parameters have no problems.
        arguments: the values of the pipeline's own parameters.
    """
    for step, values in _before_others(steps, PREPARES, "data", arguments):
        yield _settings(step, values)


def predictions_of(
    steps: Sequence[Step], arguments: Mapping[str, Any], registry: str = DEFAULT_REGISTRY
) -> Iterator[PredictSettings]:
    """The predictions with a model that is registered before a run, for an existing source; see `sources_of`.

    Args:
        registry: registry of steps that name none.
    """
    for step, values in _before_others(steps, PREDICTS, "model", arguments):
        yield _settings(step, {"registry": registry, **values})


def scripts_of(steps: Sequence[Step], arguments: Mapping[str, Any]) -> Iterator[ScriptSettings]:
    """The training scripts of steps that surely run, by paths below the current folder: others may be of the image, or
    written by an earlier step.

    Args:
        steps: steps of the pipeline, whose parameters have no problems.
        arguments: the values of the pipeline's own parameters.
    """
    for step in steps:
        if step.is_ours and step.at_root and step.component == RUNS_SCRIPT:
            values, unknown = step.known(arguments)
            settings = fields_from(ScriptSettings, values)
            if not unknown & {"script", "code"} and not Path(settings.code or settings.script).is_absolute():
                yield settings


def uploads_to(steps: Sequence[Step], arguments: Mapping[str, Any], registry: str) -> set[str]:
    """The registries that models are uploaded to, as far as they are known before a run.

    Args:
        steps: steps of the pipeline, whose parameters have no problems.
        arguments: the values of the pipeline's own parameters.
        registry: registry of steps that name none.
    """
    uploads = (step for step in steps if step.is_ours and step.component == UPLOADS)
    known = (step.known(arguments) for step in uploads)
    return {str(values.get("registry") or registry) for values, unknown in known if "registry" not in unknown}


def _before_others(
    steps: Sequence[Step], component: str, artifact: str, arguments: Mapping[str, Any]
) -> Iterator[tuple[Step, dict[str, Any]]]:
    """The steps of a component that surely run, wait for no other step, and have only known parameters.

    Args:
        artifact: an input that such a step does not have.
    """
    for step in steps:
        is_ready = step.is_ours and step.at_root and not _reads_artifact(step, artifact)
        if step.component == component and is_ready and not step.task.get("dependentTasks"):
            values, unknown = step.known(arguments)
            if not unknown:
                yield step, values


def _default(step: Step, name: str) -> Any:
    return step.spec.get("inputDefinitions", {}).get("parameters", {}).get(name, {}).get("defaultValue")


def places_of(steps: Sequence[Step], arguments: Mapping[str, Any]) -> list[Place]:
    """The places that this project's components read and write, as far as they are known before a run."""
    return list(dict.fromkeys(_places(steps, arguments)))


def imported_from_here(spec: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Place]:
    """The places on this machine that importers of a pipeline name, as far as they are known before a run.

    A path that does not exist here may be one of the image.
    """
    at_root = spec.get("root", {}).get("dag", {}).get("tasks", {})
    for name, task in tasks_in(spec):
        label = spec["components"][task["componentRef"]["name"]].get("executorLabel", "")
        if "importer" in spec["deploymentSpec"]["executors"].get(label, {}):
            given = task.get("inputs", {}).get("parameters", {}).get("uri", {})
            uri = given.get("runtimeValue", {}).get("constant")
            if at_root.get(name) is task:
                uri = uri or arguments.get(given.get("componentInputParameter", ""))
            if isinstance(uri, str) and uri and "://" not in uri and Path(uri).exists():
                yield Place(f"artifact of {name}", uri, DATA)


def _places(steps: Sequence[Step], arguments: Mapping[str, Any]) -> Iterator[Place]:
    for step in steps:
        values, _ = step.known(arguments)
        for name, kind in _PLACES.get(step.component, {}).items() if step.is_ours else ():
            if values.get(name):
                yield Place(name, str(values[name]), kind)
        if step.is_ours and step.component == RUNS_SCRIPT:
            yield from places_of_script(fields_from(ScriptSettings, values))
        if step.is_ours and step.component == TUNES:
            yield from places_of_space(str(values.get("space", "")))

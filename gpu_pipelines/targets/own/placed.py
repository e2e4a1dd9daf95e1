"""A user's compiled pipeline with its steps placed by a target: those that use accelerators, and this project's.

A target places a KFP component (`Target.place`), as for the pipelines of this project. The placed component of a step
is then copied into the pipeline, so that placement is the same in every pipeline.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from gpu_pipelines.component_interface.parameter import PYTHON_TYPES
from gpu_pipelines.errors import UserError
from gpu_pipelines.targets.own.names import free_name
from gpu_pipelines.targets.own.steps import STATUS_TYPE, Step, steps_in
from gpu_pipelines.targets.spec_steps import tasks_in

#: KFP's settings for a task whose author gave none.
_CACHED_BY_DEFAULT = {"enableCache": True}


def place_steps(
    documents: list[dict[str, Any]],
    place: Callable[[Any, Any], Callable[..., Any]],
    plans: Mapping[str, Any],
) -> None:
    """Places the steps of a compiled pipeline; each one that is placed gets a component of its own.

    Args:
        documents: the YAML documents of the file: the pipeline, and settings for Kubernetes if there are any; they are
            changed.
        place: the method of a target.
        plans: accelerators of the steps, by the names of their tasks. Other steps stay as they are, unless their
            component is one of this project.
    """
    # Executors get the names of steps, which other executors may have had before.
    of_authors = copy.deepcopy(executors_on_kubernetes(documents[1])) if len(documents) > 1 else {}
    steps = steps_in(documents[0])
    placed = [step for step in steps if step.name in plans or (step.is_ours and not step.has_accelerators)]
    kept = _names_kept(documents[0], placed)
    for step in placed:
        of_author = of_authors.get(step.spec["executorLabel"], {})
        name = step.name if step.name not in kept else free_name(step.name, kept | {each.name for each in placed})
        _take_over(step, name, _placed_alone(step, place, plans.get(step.name)), documents, of_author)
    drop_unused(documents)


def _names_kept(spec: Mapping[str, Any], placed: Sequence[Step]) -> set[str]:
    """The names of components and executors of all other tasks, which stay as they are."""
    own = {id(step.task) for step in placed}
    keys = {task["componentRef"]["name"] for _, task in tasks_in(spec) if id(task) not in own}
    labels = {spec["components"][key].get("executorLabel", "") for key in keys}
    return {key.removeprefix("comp-") for key in keys} | {label.removeprefix("exec-") for label in labels}


def _placed_alone(
    step: Step, place: Callable[[Any, Any], Callable[..., Any]], plan: Any
) -> Sequence[Mapping[str, Any]]:
    """The documents of a pipeline with only this step, as the target places it."""
    from kfp import dsl

    from gpu_pipelines.targets.compiled import compiled, documents_of

    component = _as_component(step)
    needed = [name for name, given in (component.component_spec.inputs or {}).items() if not given.optional]
    task = place(component, plan)

    def alone(*values: Any) -> None:
        task(**dict(zip(needed, values, strict=True)))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    listed = [
        inspect.Parameter(name, kind, annotation=_annotation(component.component_spec.inputs[name])) for name in needed
    ]
    alone.__signature__ = inspect.Signature(listed)  # type: ignore[attr-defined]
    return documents_of(compiled(dsl.pipeline(name=step.name)(alone)))


def _annotation(given: Any) -> Any:
    """The type of an input, for the signature of a pipeline."""
    from kfp import dsl

    if given.type in PYTHON_TYPES:
        return PYTHON_TYPES[given.type]
    # The types of artifacts were already checked when the pipeline was compiled.
    return dsl.Input[list[dsl.Artifact]] if given.is_artifact_list else dsl.Input[dsl.Artifact]


def _as_component(step: Step) -> Any:
    """The component of a step, as KFP loads it from a file."""
    from kfp.dsl.structures import ComponentSpec
    from kfp.dsl.yaml_component import YamlComponent

    # By these two keys KFP recognises a file of a component.
    key, label = f"comp-{step.component}", f"exec-{step.component}"
    inputs = _inputs_anywhere(step)
    given = {
        kind: {name: {word: name} for name in inputs[kind]}
        for kind, word in (("parameters", "componentInputParameter"), ("artifacts", "componentInputArtifact"))
        if kind in inputs
    }
    task = {"componentRef": {"name": key}, "inputs": given, "taskInfo": {"name": step.component}}
    alone = {
        "pipelineInfo": {"name": step.component},
        "components": {key: {**step.spec, "executorLabel": label, **({"inputDefinitions": inputs} if inputs else {})}},
        "deploymentSpec": {"executors": {label: {"container": _without_settings(step.container)}}},
        "root": {"dag": {"tasks": {step.component: task}}, "inputDefinitions": inputs},
        "schemaVersion": "2.1.0",
    }
    # JSON is YAML.
    component = YamlComponent(ComponentSpec.from_ir_dicts(alone, {}), json.dumps(alone))
    # KFP writes the variables of a component as a list, and reads them as a mapping.
    component.component_spec.implementation.container.env = step.variables
    return component


def _inputs_anywhere(step: Step) -> dict[str, Any]:
    """The inputs of a step, as any task can get them: KFP tells only exit tasks how others have ended."""
    inputs: dict[str, Any] = copy.deepcopy(step.spec.get("inputDefinitions", {}))
    for definition in inputs.get("parameters", {}).values():
        if definition.get("parameterType") == STATUS_TYPE:
            definition |= {"parameterType": "STRUCT", "isOptional": True}
    return inputs


def _without_settings(container: Mapping[str, Any]) -> dict[str, Any]:
    """A container without the settings that come from the pipeline and not from the component."""
    return {name: value for name, value in container.items() if name not in ("env", "resources")}


def _take_over(
    step: Step,
    name: str,
    alone: Sequence[Mapping[str, Any]],
    documents: list[dict[str, Any]],
    of_author: Mapping[str, Any],
) -> None:
    """Copies a placed step into the pipeline; its author's settings of the task stay.

    Args:
        step: the step.
        name: new name of its component and its executor.
        alone: the placed step.
        documents: documents of the pipeline.
        of_author: its author's settings for Kubernetes.
    """
    spec, made = documents[0], alone[0]
    (task,) = made["root"]["dag"]["tasks"].values()
    component = made["components"][task["componentRef"]["name"]]
    label = component["executorLabel"]
    container = made["deploymentSpec"]["executors"][label]["container"]
    for given, definition in step.spec.get("inputDefinitions", {}).get("parameters", {}).items():
        if definition.get("parameterType") == STATUS_TYPE:
            component["inputDefinitions"]["parameters"][given] = definition
    key, new_label = f"comp-{name}", f"exec-{name}"
    if resources := {**container.get("resources", {}), **step.container.get("resources", {})}:
        container["resources"] = resources
    if step.is_ours:
        if step.task.get("cachingOptions") == _CACHED_BY_DEFAULT:
            step.task["cachingOptions"] = task.get("cachingOptions", {})
        if "retryPolicy" in task:
            step.task.setdefault("retryPolicy", task["retryPolicy"])
    step.task["componentRef"] = {"name": key}
    spec["components"][key] = {**component, "executorLabel": new_label}
    spec["deploymentSpec"]["executors"][new_label] = {"container": container}
    _take_over_platform(new_label, alone[1:], label, documents, of_author)


def _take_over_platform(
    new_label: str,
    alone: Sequence[Mapping[str, Any]],
    label: str,
    documents: list[dict[str, Any]],
    of_author: Mapping[str, Any],
) -> None:
    """The same for settings for Kubernetes."""
    of_target = executors_on_kubernetes(alone[0]).get(label, {}) if alone else {}
    if not (of_author or of_target):
        return
    of_author = _with_labels(new_label.removeprefix("exec-"), of_author, of_target)
    if len(documents) == 1:
        documents.append({"platforms": {}})
    # Kubernetes refuses a pod with two mounts at one place.
    lists = [value for value in of_author.values() if isinstance(value, list)]
    taken = {each["mountPath"] for each in chain(*lists) if "mountPath" in each}
    left = {
        name: [each for each in value if each.get("mountPath") not in taken] if isinstance(value, list) else value
        for name, value in of_target.items()
    }
    executors_on_kubernetes(documents[1])[new_label] = _merged(left, of_author)


def _with_labels(step: str, of_author: Mapping[str, Any], of_target: Mapping[str, Any]) -> Mapping[str, Any]:
    """An author's settings for Kubernetes, with node labels that were given as JSON converted to labels.

    KFP's driver lets JSON replace the labels (`extendPodSpecPatch`), including those of the accelerators.

    Raises:
        UserError: the labels come from a parameter, and there are labels of accelerators.
    """
    given = of_author.get("nodeSelector", {}).get("nodeSelectorJson")
    if not given:
        return of_author
    labels = given.get("runtimeValue", {}).get("constant")
    if labels is None and "nodeSelector" in of_target:
        raise UserError(
            f"The labels of nodes of {step} are a parameter, which would replace those of its accelerators.",
            "Give them in the pipeline: kubernetes.add_node_selector(task, LABEL, VALUE).",
        )
    return of_author if labels is None else {**of_author, "nodeSelector": {"labels": labels}}


def _merged(of_target: Mapping[str, Any], of_author: Mapping[str, Any]) -> dict[str, Any]:
    """Both settings, with all entries of lists and mappings, such as labels; the author's win."""
    merged = {**of_target, **of_author}
    for name in of_target.keys() & of_author.keys():
        if isinstance(of_target[name], list):
            merged[name] = [*of_target[name], *(each for each in of_author[name] if each not in of_target[name])]
        elif isinstance(of_target[name], Mapping):
            merged[name] = _merged(of_target[name], of_author[name])
    return merged


def executors_on_kubernetes(document: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of each executor in a document for Kubernetes: `KubernetesExecutorConfig` of kfp-kubernetes."""
    found: dict[str, Any] = document.get("platforms", {})
    for name in ("kubernetes", "deploymentSpec", "executors"):
        found = found.setdefault(name, {})
    return found


def drop_unused(documents: Sequence[dict[str, Any]]) -> None:
    """Removes components and executors that no task uses any more."""
    spec = documents[0]
    used = {task["componentRef"]["name"] for _, task in tasks_in(spec)}
    spec["components"] = {key: spec["components"][key] for key in sorted(used)}
    labels = {each["executorLabel"] for each in spec["components"].values() if "executorLabel" in each}
    executors = spec["deploymentSpec"]["executors"]
    spec["deploymentSpec"]["executors"] = {label: executors[label] for label in sorted(labels)}
    if len(documents) > 1:
        for label in executors_on_kubernetes(documents[1]).keys() - labels:
            del executors_on_kubernetes(documents[1])[label]

"""The steps in the spec of a compiled pipeline: the program of each, and which take a parameter."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.dag.placement import CHECKING_STEPS, CHECKS
from gpu_pipelines.emulator.pipelines.task_order import in_order

#: A task that runs whatever the tasks before it did, such as that of an exit handler.
_WHATEVER_HAPPENED = "ALL_UPSTREAM_TASKS_COMPLETED"
_IN_CONDITION = re.compile(r"inputs\.parameter_values\['([^']+)'\]")


@dataclass(frozen=True)
class Program:
    """What a finished step must share with a step of another version of its pipeline to count as the same.

    Attributes:
        command: its command; for a job of a service the command that the job runs.
        inputs: sources of its inputs, without values of the service's own.
        outputs: names and kinds of its outputs.
        is_last: whether it runs whatever the others did, as at the end of a run.
    """

    command: tuple[str, ...]
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    is_last: bool = False

    @property
    def is_code(self) -> bool:
        """Whether it is only the code of a Python component."""
        return all(_is_code(each) for each in self.command)

    def is_as(self, other: Program, *, across: bool) -> bool:
        """Whether it is the same program.

        Args:
            other: the program of the other pipeline.
            across: whether that is for another target, which starts programs in its own way; Python code is the same.
        """
        own, others = (dict(each.inputs) for each in (self, other))
        both = own.keys() & others.keys()
        return (
            self.outputs == other.outputs
            and (self.command == other.command or (across and not (self.is_code and other.is_code)))
            and all(own[key] == others[key] for key in both)
        )


def tasks_in(spec: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tasks of a pipeline and of its parts, such as branches, by name; two parts may share a name."""
    for part in (spec.get("root", {}), *spec.get("components", {}).values()):
        yield from part.get("dag", {}).get("tasks", {}).items()


def programs_of(spec: Mapping[str, Any]) -> dict[str, Program]:
    """The programs of the steps of a pipeline, by name, without unknown ones."""
    if "root" not in spec:
        return {}
    found = {}
    for name, task in dict(tasks_in(spec)).items():
        component = spec["components"][task["componentRef"]["name"]]
        executor = spec["deploymentSpec"]["executors"].get(component.get("executorLabel", ""), {})
        if "container" in executor:
            program = _program(component, executor["container"])
            found[name] = Program(program, _inputs(task), _outputs(component), is_last(task))
    return found


def _program(component: Mapping[str, Any], container: Mapping[str, Any]) -> tuple[str, ...]:
    """The code of a Python step; else the command; for a job with its own machines, that of its containers."""
    pools = component.get("inputDefinitions", {}).get("parameters", {}).get("worker_pool_specs", {})
    started = (pools.get("defaultValue") or [{}])[0].get("container_spec") or container
    words = [str(each) for each in (*started.get("command", []), *started.get("args", []))]
    return tuple([each for each in words if _is_code(each)] or words)


def _is_code(word: str) -> bool:
    return "\nfrom kfp" in word or "\nimport kfp" in word


def _inputs(task: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The sources of parameters and artifacts; values may differ with the target or with a setting."""
    given = task.get("inputs", {})
    sources = {
        name: str(source.get("componentInputParameter") or "")
        for name, source in given.get("parameters", {}).items()
        if "componentInputParameter" in source
    }
    return tuple(sorted(sources.items()))


def _outputs(component: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    defined = component.get("outputDefinitions", {})
    parameters = {name: str(each.get("parameterType")) for name, each in defined.get("parameters", {}).items()}
    # For a job of Vertex AI, whichever step is in it.
    parameters.pop("gcp_resources", None)
    return tuple(sorted({**parameters, **dict.fromkeys(defined.get("artifacts", {}), "artifact")}.items()))


def takers_of(spec: Mapping[str, Any], parameter: str, outputs_of_check: Collection[str] = ()) -> set[str]:
    """The names of the steps that take a parameter of a pipeline, and of those in branches that depend on it.

    Args:
        spec: the pipeline.
        parameter: its name.
        outputs_of_check: outputs of the step that checks the request whose takers are included.
    """
    found: set[str] = set()

    def look(component: Mapping[str, Any], names: set[str]) -> None:
        for name, task in component["dag"]["tasks"].items():
            if name in CHECKING_STEPS:
                continue
            inner = {
                key
                for key, source in task.get("inputs", {}).get("parameters", {}).items()
                if source.get("componentInputParameter") in names
                or (
                    source.get("taskOutputParameter", {}).get("producerTask") == CHECKS
                    and source["taskOutputParameter"]["outputParameterKey"] in outputs_of_check
                )
            }
            if not inner:
                continue
            definition = spec["components"][task["componentRef"]["name"]]
            by = set(inputs_named_in(task.get("triggerPolicy", {}).get("condition", "")))
            if "dag" not in definition:
                found.add(name)
            elif inner & by or "parameterIterator" in task:
                found.update(containers_of(spec, definition))
            else:
                look(definition, inner)

    look(spec["root"], {parameter} if parameter else set())
    return found


def containers_of(spec: Mapping[str, Any], component: Mapping[str, Any]) -> Iterator[str]:
    """The names of the tasks of a part that run a container, in a possible order."""
    tasks = component["dag"]["tasks"]
    for name in in_order(tasks):
        found = spec["components"][tasks[name]["componentRef"]["name"]]
        if "dag" in found:
            yield from containers_of(spec, found)
        elif "importer" not in spec["deploymentSpec"]["executors"].get(found.get("executorLabel", ""), {}):
            yield name


def is_last(task: Mapping[str, Any]) -> bool:
    """Whether a task runs whatever the tasks before it did."""
    return bool(task.get("triggerPolicy", {}).get("strategy") == _WHATEVER_HAPPENED)


def inputs_named_in(condition: str) -> list[str]:
    """The inputs of a task in the condition of its trigger."""
    return _IN_CONDITION.findall(condition)

"""The steps of a user's compiled pipeline: tasks that run a container, with what is known of each before a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_pipelines.component_interface.accelerate import WISH, Wish, wish_of
from gpu_pipelines.component_interface.catalog import COMPONENTS
from gpu_pipelines.dag.placement import EVALUATES, TRAINING_STEPS

#: Text in the program of a component of this project.
_OURS = re.compile(r"^ *from (gpu_pipelines\.\S+) import", re.MULTILINE)
_NAMES = {name.replace("_", "-") for name in COMPONENTS}
#: The type of an input through which KFP tells how other tasks have ended.
STATUS_TYPE = "TASK_FINAL_STATUS"


@dataclass(frozen=True)
class Step:
    """A task of a compiled pipeline that runs a container.

    Attributes:
        name: name of the task.
        component: name of the component, as its author gave it.
        task: its definition in the pipeline.
        spec: the definition of its component.
        container: its container.
        in_loop: whether it is in a `ParallelFor`.
        at_root: whether it is in the pipeline itself, and not in a loop, a branch or a nested pipeline.
    """

    name: str
    component: str
    task: dict[str, Any]
    spec: dict[str, Any]
    container: dict[str, Any]
    in_loop: bool
    at_root: bool

    @property
    def inputs(self) -> dict[str, Any]:
        """The sources of its parameters, by name, without those that keep their defaults."""
        found: dict[str, Any] = self.task.get("inputs", {}).get("parameters", {})
        return found

    def give(self, name: str, value: Any) -> None:
        """Gives a parameter a value, if it has only its default."""
        given = self.task.setdefault("inputs", {}).setdefault("parameters", {})
        given.setdefault(name, {"runtimeValue": {"constant": value}})

    def set_variable(self, name: str, value: str) -> None:
        """Sets a variable of its container."""
        self.container.setdefault("env", []).append({"name": name, "value": value})

    def known(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
        """The values of its parameters that are known before a run, and the names of the other given ones.

        Args:
            arguments: the values of the pipeline's own parameters.
        """
        values, unknown = {}, set()
        for name, given in self.inputs.items():
            value = given.get("runtimeValue", {}).get("constant")
            if value is None and self.at_root:
                value = arguments.get(given.get("componentInputParameter", ""))
            if value is None or "{{$" in json.dumps(value):
                unknown.add(name)
            else:
                values[name] = value
        return values, unknown

    @property
    def is_ours(self) -> bool:
        """Whether its component is one of this project."""
        return self.component in _NAMES and bool(self.modules)

    @property
    def modules(self) -> list[str]:
        """The modules of this project that its code imports."""
        return _OURS.findall("\n".join(self.container.get("command", [])))

    @property
    def wish(self) -> Wish | None:
        """Its author's request for accelerators; None for none."""
        return wish_of(self._environment)

    @property
    def variables(self) -> dict[str, str]:
        """The variables that its author has set, without those for placement."""
        return {name: value for name, value in self._environment.items() if name != WISH}

    @property
    def _environment(self) -> dict[str, str]:
        return {each["name"]: each.get("value", "") for each in self.container.get("env", [])}

    @property
    def trains(self) -> bool:
        """Whether it trains with a component of this project."""
        return self.component in TRAINING_STEPS and self.is_ours

    @property
    def scores(self) -> bool:
        """Whether it scores checkpoints with this project's component."""
        return self.component == EVALUATES and self.is_ours

    @property
    def uses_accelerators(self) -> bool:
        """Whether it is to run on accelerators."""
        return self.wish is not None or self.trains or self.scores

    @property
    def has_accelerators(self) -> bool:
        """Whether it already has accelerators, through KFP or as a CustomJob."""
        inputs = self.spec.get("inputDefinitions", {}).get("parameters", {})
        return "accelerator" in self.container.get("resources", {}) or "worker_pool_specs" in inputs


def steps_in(spec: Mapping[str, Any]) -> list[Step]:
    """The steps of a compiled pipeline, including those in its loops and branches."""
    return list(_steps(spec, spec["root"], in_loop=False))


def _steps(spec: Mapping[str, Any], part: Mapping[str, Any], *, in_loop: bool) -> Iterator[Step]:
    for name, task in part.get("dag", {}).get("tasks", {}).items():
        key = task["componentRef"]["name"]
        component = spec["components"][key]
        looped = in_loop or "parameterIterator" in task or "artifactIterator" in task
        if "dag" in component:
            yield from _steps(spec, component, in_loop=looped)
            continue
        executor = spec["deploymentSpec"]["executors"][component["executorLabel"]]
        if "container" in executor:
            at_root = part is spec["root"]
            yield Step(name, _component_name(key), task, component, executor["container"], looped, at_root)


def _component_name(key: str) -> str:
    """The name of a component by its key in a file, where KFP numbers components of the same name.

    Components of a nested pipeline are numbered once more: `comp-train-model-2-2`.
    """
    name = key.removeprefix("comp-")
    unnumbered = re.sub(r"(-[0-9]+)+$", "", name)
    return unnumbered if unnumbered in _NAMES else name

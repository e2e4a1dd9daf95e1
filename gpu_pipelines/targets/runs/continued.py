"""A compiled pipeline that continues an earlier run: outputs of finished steps become values and importers.

Finished steps are removed. A task that takes an output of one gets the value as a constant, or the artifact from an
importer, which names the earlier run's own artifact: nothing is copied, and the service's metadata continue the
lineage. A training that had begun is told where its checkpoints are. All else stays, such as conditions, exit handlers
and nested pipelines. The state of an unfinished loop is not certain, so it is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_pipelines.dag.placement import TRAINING_STEPS
from gpu_pipelines.emulator.pipelines.conditions import holds
from gpu_pipelines.emulator.pipelines.task_order import in_order, tasks_before
from gpu_pipelines.errors import InvalidRequestError, some_of
from gpu_pipelines.targets.compiled import without_turns
from gpu_pipelines.targets.own.placed import drop_unused
from gpu_pipelines.targets.runs.earlier import NOT_TRIGGERED, RESUMES, SUCCEEDED, EarlierRun, Made
from gpu_pipelines.targets.spec_steps import containers_of, inputs_named_in, is_last, tasks_in

_CHECKPOINT_URI = "checkpoint_uri"
_NAMED = 8


@dataclass(frozen=True)
class GoneOn:
    """A pipeline that continues an earlier run.

    Attributes:
        documents: documents of the compiled file.
        taken_over: names of the steps whose outputs it takes, in order.
        left: names of the steps that it runs, also in loops and branches.
        needed: URIs of the artifacts that it takes, each with the names of step and output.
        trainings: places of checkpoints from which it continues, by the names of the steps.
        importers: names of the tasks that stand for artifacts of steps that are done.
    """

    documents: list[dict[str, Any]]
    taken_over: tuple[str, ...]
    left: tuple[str, ...]
    needed: Mapping[str, str]
    trainings: Mapping[str, str]
    importers: tuple[str, ...] = ()


@dataclass
class _Part:
    """The rest of a part of a pipeline, and the known outputs of the part."""

    is_done: bool
    made: Made
    known: dict[str, Any] = field(default_factory=dict)


def gone_on(
    documents: Sequence[Mapping[str, Any]],
    earlier: EarlierRun,
    again: Collection[str] = (),
    *,
    here: bool = False,
    can_read: Callable[[str], bool] = lambda uri: True,
) -> GoneOn:
    """Makes the pipeline that continues an earlier run.

    Args:
        documents: documents of the compiled file.
        earlier: the earlier run.
        again: names of finished steps that run again without making others run again.
        here: whether KFP's local runner will run it, which needs the step behind the value of a condition.
        can_read: whether a URI can be read where it will run; a report that cannot be read is left out of its outputs.

    Raises:
        UserError: it cannot continue exactly.
    """
    made = [copy.deepcopy(dict(each)) for each in documents]
    _require_names(made[0], earlier)
    rewriting = _Rewriting(made[0], earlier, set(again), here, can_read)
    rewriting.part(made[0]["root"])
    drop_unused(made)
    taken = tuple(rewriting.taken)
    info = made[0]["pipelineInfo"] = dict(made[0]["pipelineInfo"])
    before = str(info.get("description", "")).partition(RESUMES)[0].strip()
    info["description"] = f"{before} {RESUMES}{earlier.name}: takes over {', '.join(taken) or 'nothing'}.".strip()
    left = tuple(containers_of(made[0], made[0]["root"]))
    return GoneOn(made, taken, left, rewriting.needed, rewriting.trainings, tuple(rewriting.importers))


@dataclass(frozen=True)
class _Inside:
    """The findings about a part of a pipeline.

    Attributes:
        definitions: the components of its tasks.
        made: outputs of its finished tasks.
        known: for each of its tasks, the outputs with known values.
        importers: the tasks that stand for artifacts of finished ones.
    """

    definitions: Mapping[str, Any]
    made: dict[str, Made] = field(default_factory=dict)
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    importers: dict[str, Any] = field(default_factory=dict)


class _Rewriting:
    """Removes finished steps from a pipeline, part by part."""

    def __init__(
        self, spec: dict[str, Any], earlier: EarlierRun, again: set[str], here: bool, can_read: Callable[[str], bool]
    ) -> None:
        self._spec, self._earlier, self._again, self._here = spec, earlier, again, here
        self._can_read = can_read
        self.taken: list[str] = []
        self.needed: dict[str, str] = {}
        self.trainings: dict[str, str] = {}
        self.importers: list[str] = []

    def part(self, component: dict[str, Any]) -> _Part:
        """Rewrites the tasks of a part, in place."""
        dag = component["dag"]
        tasks: dict[str, Any] = dag["tasks"]
        definitions = {name: self._spec["components"][task["componentRef"]["name"]] for name, task in tasks.items()}
        inside = _Inside(definitions)
        settled: set[str] = set()
        for name in in_order(tasks):
            task, is_next = tasks[name], tasks_before(tasks[name]) & tasks.keys() <= settled
            found = self._task(name, task, is_next)
            if found.is_done:
                inside.made[name] = found.made
            if found.is_done or (is_next and self._is_passed_over(name, task)):
                settled.add(name)
            inside.known[name] = {**found.known, **(found.made.parameters if found.is_done else {})}
        is_done = settled == tasks.keys()
        outputs = self._outputs_of(dag, inside)
        if is_done:
            return _Part(True, outputs)
        for name in inside.made:
            del tasks[name]
        for name, task in list(tasks.items()):
            self._rewire(task, inside)
            self._decide(name, task)
        self._rewire_outputs(component, inside)
        tasks.update(inside.importers)
        return _Part(False, Made(), dict(outputs.parameters))

    def _task(self, name: str, task: dict[str, Any], is_next: bool) -> _Part:
        """A task: removed as a whole, rewritten inside, or left as it is."""
        component = self._spec["components"][task["componentRef"]["name"]]
        if "parameterIterator" in task or "artifactIterator" in task:
            return self._loop(name, component, is_next)
        if "dag" in component:
            if not is_next or self._earlier.states.get(name) == NOT_TRIGGERED:
                return _Part(False, Made())
            own = copy.deepcopy(component)
            found = self.part(own)
            if not found.is_done:
                key = self._free_name(f"{task['componentRef']['name']}-resumed")
                self._spec["components"][key] = own
                task["componentRef"] = {"name": key}
            return found
        if is_next and not is_last(task) and name not in self._again and self._earlier.has_done(name):
            if not self._is_importer(task):
                self.taken.append(name)
            return _Part(True, self._earlier.made[name])
        if (place := self._earlier.trainings.get(name)) and _trains(task, component):
            self.trainings[name] = place
            given = task.setdefault("inputs", {}).setdefault("parameters", {})
            given[_CHECKPOINT_URI] = {"runtimeValue": {"constant": place}}
        return _Part(False, Made())

    def _loop(self, name: str, component: Mapping[str, Any], is_next: bool) -> _Part:
        """A loop, which is reused as a whole or not at all: no record says which turn a step belongs to."""
        state = self._earlier.states.get(name)
        if state == SUCCEEDED and is_next:
            self.taken.append(name)
            return _Part(True, self._earlier.made.get(name, Made()))
        inside = set(containers_of(self._spec, component)) if "dag" in component else {name}
        begun = {without_turns(each) for each in self._earlier.states if self._earlier.has_begun(each)}
        if self._earlier.has_begun(name) or inside & begun:
            raise InvalidRequestError(
                f"{self._earlier.name} ended inside the loop {name}, and it is not known which of its turns are done.",
                "Run it again with --cache, which reuses the results of steps with the same inputs.",
            )
        return _Part(False, Made())

    def _is_passed_over(self, name: str, task: Mapping[str, Any]) -> bool:
        """Whether a task that stays does not make those after it run again."""
        return name in self._again or self._earlier.states.get(name) == NOT_TRIGGERED or self._is_importer(task)

    def _is_importer(self, task: Mapping[str, Any]) -> bool:
        label = self._spec["components"][task["componentRef"]["name"]].get("executorLabel", "")
        return "importer" in self._spec["deploymentSpec"]["executors"].get(label, {})

    def _rewire(self, task: dict[str, Any], inside: _Inside) -> None:
        """Gives a remaining task values in place of outputs of removed tasks."""
        inputs = task.get("inputs", {})
        for key, source in list(inputs.get("parameters", {}).items()):
            output = source.get("taskOutputParameter")
            if output is None or not (output["producerTask"] in inside.made or _knows(inside.known, output)):
                continue
            del source["taskOutputParameter"]
            values = inside.known[output["producerTask"]]
            if output["outputParameterKey"] in values:
                source["runtimeValue"] = {"constant": self._constant(values[output["outputParameterKey"]], output)}
            else:
                self._require_optional(task, key, output)
                del inputs["parameters"][key]
        used = set()
        for key, source in list(inputs.get("artifacts", {}).items()):
            output = source.get("taskOutputArtifact")
            if output is None or output["producerTask"] not in inside.made:
                continue
            importer = self._importer(output["producerTask"], output["outputArtifactKey"], inside)
            if importer:
                source["taskOutputArtifact"] = {"outputArtifactKey": "artifact", "producerTask": importer}
                used.add(importer)
            else:
                del inputs["artifacts"][key]
        if "dependentTasks" in task or used:
            kept = [each for each in task.get("dependentTasks", []) if each not in inside.made]
            task["dependentTasks"] = [*kept, *sorted(used)]

    def _require_optional(self, task: Mapping[str, Any], key: str, output: Mapping[str, Any]) -> None:
        """Raises UserError if a task needs an output that is not known."""
        defined = self._spec["components"][task["componentRef"]["name"]].get("inputDefinitions", {})
        wanted = defined.get("parameters", {}).get(key, {})
        if not (wanted.get("isOptional") or "defaultValue" in wanted):
            raise InvalidRequestError(
                f"{output['outputParameterKey']} of {output['producerTask']} is needed, and {self._earlier.name} "
                "does not report it.",
                "Run it again with --cache.",
            )

    def _constant(self, value: Any, output: Mapping[str, Any]) -> Any:
        if "{{$" in str(value):
            raise InvalidRequestError(
                f"{output['outputParameterKey']} of {output['producerTask']} contains {{{{$, which the service would "
                "take for a placeholder.",
                "Run it again.",
            )
        return value

    def _importer(self, producer: str, output: str, inside: _Inside) -> str:
        """The name of the task that stands for an artifact of a finished step; empty if the step made none."""
        held = inside.made[producer].artifacts.get(output, [])
        if not held:
            return ""
        if len(held) > 1:
            raise InvalidRequestError(
                f"{output} of {producer} is a list of {len(held)} artifacts; an importer gives only one.",
                "Run it again with --cache.",
            )
        name = f"{producer}-{output}".replace("_", "-").lower()
        if name in inside.importers:
            return name
        kind = inside.definitions[producer]["outputDefinitions"]["artifacts"][output]["artifactType"]
        uri, label = str(held[0]["uri"]), self._free_name(f"exec-{name}", "executors")
        key = self._free_name(f"comp-{name}")
        self.importers.append(name)
        self.needed[uri] = f"{output} of {producer}"
        self._spec["components"][key] = {
            "executorLabel": label,
            "inputDefinitions": {"parameters": {"uri": {"parameterType": "STRING"}}},
            "outputDefinitions": {"artifacts": {"artifact": {"artifactType": dict(kind)}}},
        }
        importer: dict[str, Any] = {"artifactUri": {"constant": uri}, "typeSchema": dict(kind)}
        if held[0].get("metadata"):
            importer["metadata"] = dict(held[0]["metadata"])
        self._spec["deploymentSpec"]["executors"][label] = {"importer": importer}
        inside.importers[name] = {
            "cachingOptions": {},
            "componentRef": {"name": key},
            "inputs": {"parameters": {"uri": {"runtimeValue": {"constant": uri}}}},
            "taskInfo": {"name": name},
        }
        return name

    def _free_name(self, stem: str, where: str = "components") -> str:
        taken = self._spec["components"] if where == "components" else self._spec["deploymentSpec"]["executors"]
        name, number = stem, 1
        while name in taken:
            number += 1
            name = f"{stem}-{number}"
        return name

    def _decide(self, name: str, task: dict[str, Any]) -> None:
        """Removes a condition that is true by known values; the local runner would not find these."""
        policy = task.get("triggerPolicy", {})
        condition = policy.get("condition", "")
        given = task.get("inputs", {}).get("parameters", {})
        values = {
            key: given[key]["runtimeValue"]["constant"]
            for key in inputs_named_in(condition)
            if "constant" in given.get(key, {}).get("runtimeValue", {}) and "{{$" not in str(given[key])
        }
        if not values:
            return
        if set(values) == set(inputs_named_in(condition)) and holds(condition, values):
            del policy["condition"]
            if not policy:
                del task["triggerPolicy"]
        elif self._here:
            raise InvalidRequestError(
                f"{name} is a branch whose condition needs outputs of steps that are done; KFP's local runner does not "
                "know them.",
                "Resume it on the target where it ran.",
            )

    def _outputs_of(self, dag: Mapping[str, Any], inside: _Inside) -> Made:
        """The known outputs of a part."""
        parameters: dict[str, Any] = {}
        artifacts: dict[str, Sequence[Mapping[str, Any]]] = {}
        outputs = dag.get("outputs", {})
        for key, source in outputs.get("parameters", {}).items():
            for each in _selectors(source):
                held = inside.known.get(each["producerSubtask"], {})
                if each["outputParameterKey"] in held:
                    parameters.setdefault(key, held[each["outputParameterKey"]])
        for key, source in outputs.get("artifacts", {}).items():
            for each in source.get("artifactSelectors", []):
                made = inside.made.get(each["producerSubtask"], Made())
                held_artifacts = made.artifacts.get(each["outputArtifactKey"])
                if held_artifacts:
                    artifacts.setdefault(key, held_artifacts)
        return Made(parameters, artifacts)

    def _rewire_outputs(self, component: dict[str, Any], inside: _Inside) -> None:
        """Makes the outputs of a part come from importers; outputs with values are removed: their takers have these."""
        outputs = component["dag"].get("outputs", {})
        defined = component.get("outputDefinitions", {})
        for key, source in list(outputs.get("parameters", {}).items()):
            selectors = _selectors(source)
            if any(each["producerSubtask"] in inside.made or _knows_sub(inside.known, each) for each in selectors):
                del outputs["parameters"][key]
                defined.get("parameters", {}).pop(key, None)
        for key, source in list(outputs.get("artifacts", {}).items()):
            kept = []
            for each in source.get("artifactSelectors", []):
                producer, output = each["producerSubtask"], each["outputArtifactKey"]
                held = inside.made[producer].artifacts.get(output, []) if producer in inside.made else []
                if producer not in inside.made:
                    kept.append(each)
                elif component is self._spec["root"] and not all(self._can_read(str(one["uri"])) for one in held):
                    # Only people use it, and they find it where it is.
                    continue
                elif name := self._importer(producer, output, inside):
                    kept.append({"outputArtifactKey": "artifact", "producerSubtask": name})
            if kept:
                source["artifactSelectors"] = kept
            else:
                del outputs["artifacts"][key]
                defined.get("artifacts", {}).pop(key, None)
        for several in (outputs, defined):
            for kind in [kind for kind in several if not several[kind]]:
                del several[kind]
        if "outputs" in component["dag"] and not outputs:
            del component["dag"]["outputs"]
        if "outputDefinitions" in component and not defined:
            del component["outputDefinitions"]


def _require_names(spec: Mapping[str, Any], earlier: EarlierRun) -> None:
    """Raises UserError if steps or loops in several parts share a name, and the earlier run has begun one of them."""
    loops = [name for name, task in tasks_in(spec) if "parameterIterator" in task or "artifactIterator" in task]
    names = [*containers_of(spec, spec["root"]), *loops]
    if several := {name for name in names if names.count(name) > 1 and earlier.has_begun(name)}:
        raise InvalidRequestError(
            f"Several steps of the pipeline are called {some_of(several, _NAMED)}, so it is not known which of them is "
            "done.",
            "Give them names of their own (set_display_name does not), or run it again with --cache.",
        )


def _trains(task: Mapping[str, Any], component: Mapping[str, Any]) -> bool:
    """Whether a task has the input for the place of its checkpoints."""
    named = str(task["componentRef"]["name"]).removeprefix("comp-")
    inputs = component.get("inputDefinitions", {}).get("parameters", {})
    return _CHECKPOINT_URI in inputs and any(named.startswith(each) for each in TRAINING_STEPS)


def _knows(known: Mapping[str, Mapping[str, Any]], output: Mapping[str, Any]) -> bool:
    return output["outputParameterKey"] in known.get(output["producerTask"], {})


def _knows_sub(known: Mapping[str, Mapping[str, Any]], selector: Mapping[str, Any]) -> bool:
    return selector["outputParameterKey"] in known.get(selector["producerSubtask"], {})


def _selectors(source: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "valueFromParameter" in source:
        return [source["valueFromParameter"]]
    return list(source.get("valueFromOneof", {}).get("parameterSelectors", []))

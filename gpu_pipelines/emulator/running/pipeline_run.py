"""Runs one pipeline job like Vertex AI Pipelines: its sub-DAGs, loops and conditions; passes outputs between tasks."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from gpu_pipelines.emulator.pipelines.conditions import holds, selected
from gpu_pipelines.emulator.pipelines.constants import filled
from gpu_pipelines.emulator.pipelines.payload import PipelineRun
from gpu_pipelines.emulator.pipelines.task_order import in_order, tasks_before

SUCCEEDED, FAILED, SKIPPED, CANCELLED = "SUCCEEDED", "FAILED", "SKIPPED", "CANCELLED"
NOT_TRIGGERED, PENDING = "NOT_TRIGGERED", "PENDING"
_WHATEVER_HAPPENED = "ALL_UPSTREAM_TASKS_COMPLETED"
_FAIL_FAST = "PIPELINE_FAILURE_POLICY_FAIL_FAST"
#: Tasks at the same time: one for each core, but at least two, so that tasks that wait for each other are found.
AT_A_TIME = max(2, os.cpu_count() or 1)
Spec = Mapping[str, Any]


@dataclass
class Values:
    """Values passed between tasks: parameters, and lists of artifacts, by name."""

    parameters: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """The end of a task.

    Attributes:
        state: name of a `PipelineTaskDetail.State`.
        made: its outputs.
        error: its error message.
    """

    state: str
    made: Values = field(default_factory=Values)
    error: str = ""


@dataclass(frozen=True)
class Task:
    """A task to run.

    Attributes:
        name: its own name, with the iterations of its loops.
        placed: the task in the file.
        component: its component.
        given: its inputs.
    """

    name: str
    placed: Mapping[str, Any]
    component: Mapping[str, Any]
    given: Values


class JobRun:
    """Runs the tasks of one job, independent ones at the same time.

    Args:
        spec: the pipeline.
        run: the values of placeholders.
        policy: the failure policy of the job.
        carry_out: runs a single task; returns its end.
        tell: called with the state of a sub-DAG, and of a skipped task.
        tell_made: called with the outputs of a sub-DAG.
        stopped: whether the job was cancelled.
    """

    def __init__(
        self,
        spec: Spec,
        run: PipelineRun,
        policy: str,
        carry_out: Callable[[Task], Ended],
        tell: Callable[[str, str], None],
        tell_made: Callable[[str, Values], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._spec, self._run, self._fast = spec, run, policy == _FAIL_FAST
        self._carry_out, self._tell, self._tell_made, self._stopped = carry_out, tell, tell_made, stopped
        self.failed: list[str] = []
        self._named: set[str] = set()
        self._lock = threading.Lock()

    def whole(self, parameters: Mapping[str, Any]) -> Ended:
        """Runs the pipeline with its parameters; `failed` has the tasks that failed."""
        return self._part(self._spec["root"], Values(dict(parameters)), "", "")

    def _part(self, component: Mapping[str, Any], given: Values, turn: str, part: str) -> Ended:
        """Runs the tasks of a sub-DAG; `turn` names the iterations of its loops, and `part` the sub-DAG."""
        ended: dict[str, Ended] = {}
        dag = component["dag"]
        tasks = dag["tasks"]
        # All get their names before one begins, so that these are the same each time.
        left = {name: self._own_name(name, turn, part) for name in in_order(tasks)}
        before = {name: tasks_before(tasks[name]) & set(tasks) for name in tasks}
        running: dict[Future[Ended], str] = {}
        with ThreadPoolExecutor(len(tasks), thread_name_prefix="task") as pool:
            while left or running:
                for name in [each for each in left if ended.keys() >= before[each]]:
                    asked = (left.pop(name), tasks[name], given, ended, turn)
                    running[pool.submit(self._task, *asked)] = name
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    ended[running.pop(future)] = future.result()
        state = FAILED if any(each.state in (FAILED, CANCELLED) for each in ended.values()) else SUCCEEDED
        error = next((each.error for each in ended.values() if each.error), "")
        return Ended(state, _outputs_of_part(dag, ended), error)

    def _own_name(self, name: str, turn: str, part: str) -> str:
        """The name of a task in this job: several sub-DAGs may have tasks of the same name."""
        with self._lock:
            full = name + turn
            if full in self._named:
                full = f"{part}.{full}"
            first, number = full, 1
            while full in self._named:
                number += 1
                full = f"{first}.{number}"
            self._named.add(full)
        return full

    def _task(
        self, full: str, placed: Mapping[str, Any], given: Values, ended: Mapping[str, Ended], turn: str
    ) -> Ended:
        policy = placed.get("triggerPolicy", {})
        if state := self._why_not(placed, policy, ended):
            if state != PENDING:
                self._tell(full, state)
            return Ended(state)
        component = self._spec["components"][placed["componentRef"]["name"]]
        values = self._given(placed, given, ended, full)
        if "parameterIterator" in placed or "artifactIterator" in placed:
            found = self._loop(full, turn, placed, component, values, policy)
        elif not holds(policy.get("condition", ""), values.parameters):
            found = Ended(NOT_TRIGGERED)
            self._tell(full, NOT_TRIGGERED)
        elif "dag" in component:
            self._tell(full, "RUNNING")
            found = self._part(component, values, turn, full)
            self._tell_made(full, found.made)
            self._tell(full, found.state)
        else:
            found = self._carry_out(Task(full, placed, component, values))
            if found.state == FAILED:
                self.failed.append(full)
        return found

    def _why_not(self, placed: Mapping[str, Any], policy: Mapping[str, Any], ended: Mapping[str, Ended]) -> str:
        """The state of a task that is skipped because of earlier ones; empty if it runs."""
        before = [ended[each].state for each in placed.get("dependentTasks", [])]
        if self._stopped():
            return CANCELLED
        if policy.get("strategy") == _WHATEVER_HAPPENED:
            return ""
        if (self._fast and self.failed) or any(state in (FAILED, CANCELLED, PENDING) for state in before):
            return PENDING
        return NOT_TRIGGERED if NOT_TRIGGERED in before else ""

    def _loop(
        self, name: str, turn: str, placed: Mapping[str, Any], component: Mapping[str, Any], values: Values, policy: Any
    ) -> Ended:
        """Runs a sub-DAG for each item; its outputs are lists over all iterations."""
        if not holds(policy.get("condition", ""), values.parameters):
            self._tell(name, NOT_TRIGGERED)
            return Ended(NOT_TRIGGERED)
        self._tell(name, "RUNNING")
        most = int(placed.get("iteratorPolicy", {}).get("parallelismLimit", 0)) or AT_A_TIME
        with ThreadPoolExecutor(most, thread_name_prefix="turn") as pool:
            begun = [
                pool.submit(self._part, component, each, f"{turn}-#{number}", name)
                for number, each in enumerate(_turns_of(placed, values))
            ]
            turns = [each.result() for each in begun]
        state = FAILED if any(one.state == FAILED for one in turns) else SUCCEEDED
        self._tell(name, state)
        outputs = component.get("outputDefinitions", {})
        made = Values(
            # An iteration whose condition did not hold has no outputs, and is left out.
            {
                key: [one.made.parameters[key] for one in turns if key in one.made.parameters]
                for key in outputs.get("parameters", {})
            },
            {
                key: [each for one in turns for each in one.made.artifacts.get(key, [])]
                for key in outputs.get("artifacts", {})
            },
        )
        self._tell_made(name, made)
        return Ended(state, made, next((one.error for one in turns if one.error), ""))

    def _given(self, placed: Mapping[str, Any], outer: Values, ended: Mapping[str, Ended], name: str) -> Values:
        """The inputs of a task, each from the source in the file."""
        found = Values()
        wanted = placed.get("inputs", {})
        component = self._spec["components"][placed["componentRef"]["name"]]
        definitions = component.get("inputDefinitions", {}).get("parameters", {})
        for key, definition in definitions.items():
            if "defaultValue" in definition:
                found.parameters[key] = definition["defaultValue"]
        for key, source in wanted.get("parameters", {}).items():
            there, value = self._parameter(source, outer, ended)
            if there:
                found.parameters[key] = self._selected(source, value)
        for key in found.parameters:
            found.parameters[key] = filled(
                found.parameters[key],
                found.parameters,
                self._run.placeholders(name),
                is_text=definitions.get(key, {}).get("parameterType") == "STRING",
            )
        for key, source in wanted.get("artifacts", {}).items():
            if "componentInputArtifact" in source:
                held = outer.artifacts.get(source["componentInputArtifact"])
            else:
                output = source["taskOutputArtifact"]
                held = ended[output["producerTask"]].made.artifacts.get(output["outputArtifactKey"])
            if held is not None:
                found.artifacts[key] = held
        return found

    def _parameter(self, source: Mapping[str, Any], outer: Values, ended: Mapping[str, Ended]) -> tuple[bool, Any]:
        """Whether a parameter has a value, and the value."""
        if "componentInputParameter" in source:
            key = source["componentInputParameter"]
            return key in outer.parameters, outer.parameters.get(key)
        if "taskOutputParameter" in source:
            output = source["taskOutputParameter"]
            made = ended[output["producerTask"]].made.parameters
            return output["outputParameterKey"] in made, made.get(output["outputParameterKey"])
        if "taskFinalStatus" in source:
            return True, self._final_status(source["taskFinalStatus"]["producerTask"], ended)
        return True, source["runtimeValue"]["constant"]

    @staticmethod
    def _selected(source: Mapping[str, Any], value: Any) -> Any:
        expression = source.get("parameterExpressionSelector", "")
        return selected(expression, value) if expression else value

    def _final_status(self, task: str, ended: Mapping[str, Ended]) -> dict[str, Any]:
        """`PipelineTaskFinalStatus` of a task, or of the whole pipeline."""
        states = [ended[task]] if task in ended else list(ended.values())
        failed = next((each for each in states if each.state in (FAILED, CANCELLED)), None)
        return {
            "state": failed.state if failed else SUCCEEDED,
            "error": {"code": 9, "message": failed.error} if failed else {},
            "pipelineJobResourceName": self._run.placeholders("")["{{$.pipeline_job_resource_name}}"],
            "pipelineTaskName": task,
        }


def _turns_of(placed: Mapping[str, Any], values: Values) -> Iterator[Values]:
    """The inputs of each iteration of a loop."""
    if "artifactIterator" in placed:
        iterator = placed["artifactIterator"]
        for artifact in values.artifacts.get(iterator["items"]["inputArtifact"], []):
            yield Values(dict(values.parameters), {**values.artifacts, iterator["itemInput"]: [artifact]})
        return
    iterator = placed["parameterIterator"]
    items: Any = iterator["items"]
    found = json.loads(items["raw"]) if "raw" in items else values.parameters[items["inputParameter"]]
    if isinstance(found, str):
        found = json.loads(found)
    for item in found:
        yield Values({**values.parameters, iterator["itemInput"]: item}, dict(values.artifacts))


def _outputs_of_part(dag: Mapping[str, Any], ended: Mapping[str, Ended]) -> Values:
    """The outputs of a sub-DAG: those of its tasks; of several branches, that of the taken one."""
    made, outputs = Values(), dag.get("outputs", {})
    for key, source in outputs.get("parameters", {}).items():
        one = source.get("valueFromParameter")
        for each in [one] if one else source["valueFromOneof"]["parameterSelectors"]:
            held = ended[each["producerSubtask"]].made.parameters
            if each["outputParameterKey"] in held:
                made.parameters[key] = held[each["outputParameterKey"]]
                break
    for key, source in outputs.get("artifacts", {}).items():
        for each in source.get("artifactSelectors", []):
            artifacts = ended[each["producerSubtask"]].made.artifacts.get(each["outputArtifactKey"])
            if artifacts is not None:
                made.artifacts[key] = artifacts
                break
    return made


def parameters_with_defaults(spec: Spec, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a pipeline: those given, and the defaults of the others."""
    definitions = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    return {
        key: given.get(key, definition.get("defaultValue"))
        for key, definition in definitions.items()
        if key in given or "defaultValue" in definition or not definition.get("isOptional")
    }


def failure_message(failed: Sequence[str]) -> str:
    """The service's message about a failed job."""
    return f"The DAG failed because some tasks failed. The failed tasks are: [{', '.join(failed)}]."

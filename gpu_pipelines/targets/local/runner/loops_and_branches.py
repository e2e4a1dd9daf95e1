"""Loops, conditions and what branches and turns give, in place of what KFP's local runner makes of them."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.pipelines.conditions import holds, selected
from gpu_pipelines.targets.local.runner.inputs import alone, is_made

#: State of a branch whose condition was not met; KFP's runner keeps none.
_SKIPPED = "SKIPPED"


class Turns:
    """Replaces `concurrent.futures` for the turns of loops: an interrupted run begins no more turns.

    The runner waits for all turns of a loop before it passes a Ctrl-C on, including those that have not begun.
    """

    as_completed = staticmethod(futures.as_completed)

    def __init__(self) -> None:
        self.are_over = threading.Event()
        self._pools: list[futures.ThreadPoolExecutor] = []

    def ThreadPoolExecutor(self, max_workers: int) -> futures.ThreadPoolExecutor:  # noqa: N802
        turns = self

        class Pool(futures.ThreadPoolExecutor):
            def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
                if isinstance(sys.exc_info()[1], KeyboardInterrupt):
                    turns.are_over.set()
                super().shutdown(wait and not turns.are_over.is_set(), cancel_futures=turns.are_over.is_set())

        self._pools.append(Pool(max_workers))
        return self._pools[-1]

    def ended(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The result of a step; without this, a step whose processes were ended counts as a success, and is cached."""

        def run(**named: Any) -> Any:
            outcome = original(**named)
            if self.are_over.is_set():
                raise RuntimeError("The run was interrupted.")
            return outcome

        return run

    def wait(self) -> None:
        """Waits for the remaining turns after an interruption; their processes have ended."""
        for pool in self._pools:
            futures.ThreadPoolExecutor.shutdown(pool)


def selected_part(value: Any, expression: str) -> Any:
    try:
        return selected(expression, value)
    except ApiError as error:
        raise ValueError(error.message) from error


def of_branches_that_ran(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The outputs of a part of a pipeline, without those of a branch that did not run: `dsl.OneOf` takes another's."""

    def outputs(dag_outputs_spec: Any, io_store: Any) -> dict[str, Any]:
        told = type(dag_outputs_spec)()
        told.CopyFrom(dag_outputs_spec)
        for name, output in dag_outputs_spec.parameters.items():
            if (task := output.value_from_parameter.producer_subtask) and _is_skipped(task, io_store):
                del told.parameters[name]
        for name, output in dag_outputs_spec.artifacts.items():
            ran = [each for each in output.artifact_selectors if not _is_skipped(each.producer_subtask, io_store)]
            del told.artifacts[name].artifact_selectors[:]
            told.artifacts[name].artifact_selectors.extend(ran)
            if not ran:
                del told.artifacts[name]
        return original(dag_outputs_spec=told, io_store=io_store)

    return outputs


def _is_skipped(task: str, io_store: Any) -> bool:
    """Whether it is a branch whose condition was not met."""
    try:
        return bool(io_store.get_task_status(task) == _SKIPPED)
    except ValueError:
        return False


def with_inputs_in_conditions(original: Callable[..., Any]) -> Callable[..., Any]:
    """Writes the values of its names into each condition: the runner evaluates only its text."""

    def run(*, dag_component_spec: Any, **named: Any) -> Any:
        told = type(dag_component_spec)()
        told.CopyFrom(dag_component_spec)
        for name, task in told.dag.tasks.items():
            if condition := task.trigger_policy.condition:
                inputs = alone(task.inputs, "parameters").SerializeToString()
                task.trigger_policy.condition = json.dumps([name, condition, inputs.hex()])
        return original(dag_component_spec=told, **named)

    return run


def is_met(condition: str, io_store: Any) -> bool:
    """Whether the condition of a branch is met, as `with_inputs_in_conditions` wrote it."""
    from kfp.local.orchestrator.orchestrator_utils import OrchestratorUtils
    from kfp.pipeline_spec import pipeline_spec_pb2

    name, text, inputs = json.loads(condition)
    wanted = pipeline_spec_pb2.TaskInputsSpec.FromString(bytes.fromhex(inputs))
    try:
        is_met = holds(text, OrchestratorUtils.make_task_arguments(wanted, io_store))
    except ApiError as error:
        raise ValueError(error.message) from error
    if not is_met:
        io_store.put_task_status(name, _SKIPPED)
    return is_met


def with_known_turns(original: Callable[..., bool]) -> Callable[..., bool]:
    """Runs a loop with known inputs and items, whose outputs are lists over the turns that made some."""

    def run(*, task_name: str, task_spec: Any, components: Any, io_store: Any, **named: Any) -> bool:
        if task_spec.WhichOneof("iterator") == "parameter_iterator":
            task_spec = _with_known_inputs(task_spec, io_store)
        failed = original(task_name=task_name, task_spec=task_spec, components=components, io_store=io_store, **named)
        outputs = components[task_spec.component_ref.name].output_definitions
        for key in () if failed else (*outputs.parameters, *outputs.artifacts):
            made = io_store.get_task_output(task_name, key) if is_made(task_name, key, io_store) else []
            # An inner branch may not have run. Lists of artifacts become one list, as artifacts have no lists of lists.
            made = [each for each in made if each is not None]
            if key in outputs.artifacts:
                made = [one for each in made for one in (each if isinstance(each, list) else [each])]
            io_store.put_task_output(task_name, key, made)
        return failed

    return run


def artifacts_of_loop(task_spec: Any, io_store: Any, task_name: str) -> tuple[list[Any], str, int]:
    """The artifacts that a loop is over, by the name that its part gives them; the runner knows only steps' names."""
    from kfp.local.orchestrator.orchestrator_utils import OrchestratorUtils

    iterator = task_spec.artifact_iterator
    held = OrchestratorUtils.make_task_arguments(alone(task_spec.inputs, "artifacts"), io_store)
    return held[iterator.items.input_artifact], iterator.item_input, task_spec.iterator_policy.parallelism_limit


def _with_known_inputs(task_spec: Any, io_store: Any) -> Any:
    """A loop with its items and the values of its parameters in place of references to them."""
    from kfp.compiler.pipeline_spec_builder import to_protobuf_value
    from kfp.local.orchestrator.orchestrator_utils import OrchestratorUtils

    known = type(task_spec)()
    known.CopyFrom(task_spec)
    values = OrchestratorUtils.make_task_arguments(alone(task_spec.inputs, "parameters"), io_store)
    for name, value in values.items():
        known.inputs.parameters[name].Clear()
        known.inputs.parameters[name].runtime_value.constant.CopyFrom(to_protobuf_value(value))
    source = known.parameter_iterator.items
    items = source.raw if source.HasField("raw") else values[source.input_parameter]
    # A list may be a JSON text; the runner would go through its letters.
    source.raw = items if isinstance(items, str) else json.dumps(items)
    return known

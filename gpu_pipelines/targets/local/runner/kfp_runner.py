"""Makes KFP's local runner behave like the platforms, in the following cases.

By default, a turn of a loop gets the item in place of every output of a step outside the loop. Only loops over the
output `Output` work. A condition that cannot be evaluated (a text with an apostrophe) is false. Whole numbers in lists,
dictionaries and metadata become floats. A nested pipeline gets parameters of the outer one in place of its own
defaults, and artifacts of that in place of those it is called with, if it takes no parameters. An optional whole number
without a value is an error, and so is an optional input that comes from a step that failed. An output in a list or a
dictionary is a text whose quotes break the step, and in a text for a nested pipeline it is `null`. After Ctrl-C the
remaining turns of a loop are begun. Only one of equal steps runs. Between the artifacts of branches there is no choice.
Steps that run at once print ever slower.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_pipelines.emulator.api_error import ApiError
from gpu_pipelines.emulator.pipelines.conditions import holds, selected
from gpu_pipelines.emulator.pipelines.constants import filled
from gpu_pipelines.numbers import as_protobuf_writes, finite_json
from gpu_pipelines.step_environment import RUN_DIRECTORY, STEP
from gpu_pipelines.targets.kfp_parts import Replacement, replaced
from gpu_pipelines.targets.local.runner.kfp_results import FilesElsewhere, key_of_each_step, place_of_each_training
from gpu_pipelines.targets.local.runner.processes import end_left_by_step

#: The part of a step's command that makes the folder of its program; and the same in the run's folder.
_FOLDER_OF_PROGRAM = "program_path=$(mktemp -d)"
_FOLDER_IN_RUN = f'program_path=$(mktemp -d "${RUN_DIRECTORY}/.program-XXXXXX")'

#: State of a branch whose condition was not met; KFP's runner keeps none.
_SKIPPED = "SKIPPED"


@contextmanager
def as_on_platforms(runs: Path) -> Iterator[list[Exception]]:
    """Makes KFP's local runner treat loops, conditions and whole numbers like the platforms.

    Args:
        runs: directory of runs.

    Yields:
        The errors with which it could not continue. Each fails its task.

    Raises:
        UserError: the runner of the installed kfp has another structure.
    """
    errors: list[Exception] = []
    turns = _Turns()
    parts = partial(_replacements, errors, turns, FilesElsewhere(runs))
    with replaced(parts, "runs pipelines on this machine"):
        try:
            yield errors
        finally:
            turns.wait()


def _replacements(errors: list[Exception], turns: _Turns, files: FilesElsewhere) -> list[Replacement]:
    """What is replaced of the runner."""
    from kfp.compiler import pipeline_spec_builder
    from kfp.local import (
        executor_input_utils,
        logging_utils,
        placeholder_utils,
        subprocess_task_handler,
        task_dispatcher,
    )
    from kfp.local.cache import LocalCache, _MissingArtifactError
    from kfp.local.orchestrator import enhanced_dag_orchestrator as orchestrator
    from kfp.local.orchestrator.orchestrator_utils import OrchestratorUtils

    return [
        (pipeline_spec_builder, "to_protobuf_value", _with_nulls),
        (placeholder_utils, "resolve_individual_placeholder", _with_all_of_the_run),
        (executor_input_utils, "executor_input_to_dict", _whole_numbers),
        (executor_input_utils, "construct_executor_input", _with_values_alone),
        (OrchestratorUtils, "join_user_inputs_and_defaults", _with_optional_ones),
        (orchestrator.task_spec_utils, "build_nested_dag_arguments", _with_own_defaults),
        (orchestrator.task_spec_utils, "get_artifact_iterator_items", lambda _: _artifacts_of_loop),
        (OrchestratorUtils, "make_task_arguments", lambda original: place_of_each_training(_filled(original))),
        (OrchestratorUtils, "_apply_expression_selector", lambda _: _selected),
        (OrchestratorUtils, "get_dag_outputs", _of_branches_that_ran),
        (orchestrator, "run_enhanced_dag", _with_inputs_in_conditions),
        (orchestrator.ConditionEvaluator, "evaluate_condition", lambda _: _is_met),
        (orchestrator, "_run_parallel_for_task", _loop),
        (orchestrator, "execute_task", partial(_noting, errors=errors, turns=turns)),
        (task_dispatcher, "run_single_task_implementation", turns.ended),
        (orchestrator, "concurrent", lambda _: SimpleNamespace(futures=turns)),
        # Steps that run at once would undo it out of turn: it stays, and each one that stays doubles what is printed.
        (logging_utils, "indented_print", lambda _: nullcontext),
        (subprocess_task_handler.SubprocessTaskHandler, "run", _whose_numbers_are_read),
        (
            subprocess_task_handler,
            "subprocess",
            lambda _: SimpleNamespace(**{**vars(subprocess), "Popen": _ReadToItsEnd}),
        ),
        (LocalCache, "compute_key", key_of_each_step),
        (LocalCache, "_serialize_value_for_key", files.in_keys),
        (LocalCache, "_serialize_artifact", files.kept),
        (LocalCache, "_deserialize_artifact", partial(files.taken, missing=_MissingArtifactError)),
    ]


def _with_nulls(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Allows JSON's null as well, which a step may leave in a list or a dictionary."""
    kind = type(original(""))
    return lambda value: kind(null_value=0) if value is None else original(value)


def _with_all_of_the_run(original: Callable[..., str]) -> Callable[..., str]:
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


def _whole_numbers(original: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    def written(executor_input: Any, component_spec: Any) -> Any:
        # Null is not a whole number, and for missing inputs KFP's executor uses the function's defaults.
        told = type(executor_input)()
        told.CopyFrom(executor_input)
        for name, value in executor_input.inputs.parameter_values.items():
            if value.WhichOneof("kind") in (None, "null_value"):
                del told.inputs.parameter_values[name]
        return as_protobuf_writes(original(executor_input=told, component_spec=component_spec))

    return written


def _with_values_alone(original: Callable[..., Any]) -> Callable[..., Any]:
    """The inputs of a step without those that have no value: it has its own defaults for these."""

    def construct(*, arguments: dict[str, Any], **named: Any) -> Any:
        return original(arguments={name: each for name, each in arguments.items() if each is not None}, **named)

    return construct


def _with_optional_ones(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The inputs of a pipeline; an optional one that has neither a value nor a default is None."""

    def join(dag_arguments: dict[str, Any], dag_inputs_spec: Any) -> dict[str, Any]:
        known = [*dag_inputs_spec.parameters.items(), *dag_inputs_spec.artifacts.items()]
        nothing = {name: None for name, each in known if each.is_optional and _default(each) is None}
        return original(dag_arguments={**nothing, **dag_arguments}, dag_inputs_spec=dag_inputs_spec)

    return join


def _with_own_defaults(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The inputs of a nested pipeline: artifacts also if it gets nothing else, and its own default for one that is not
    given, whatever is around it.
    """
    from kfp.local.orchestrator.orchestrator_utils import OrchestratorUtils

    def build(*, task_spec: Any, component_spec: Any, io_store: Any, **named: Any) -> dict[str, Any]:
        made = original(task_spec=task_spec, component_spec=component_spec, io_store=io_store, **named)
        made.update(OrchestratorUtils.make_task_arguments(_alone(task_spec.inputs, "artifacts"), io_store))
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


def _filled(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The inputs of a task, with outputs filled in inside texts, lists and dictionaries."""

    def make(task_inputs_spec: Any, io_store: Any) -> dict[str, Any]:
        made = original(task_inputs_spec, io_store)
        constants = {name for name, each in task_inputs_spec.parameters.items() if each.HasField("runtime_value")}
        return {name: filled(value, made, is_text=True) if name in constants else value for name, value in made.items()}

    return make


class _ReadToItsEnd(subprocess.Popen[str]):
    """A step whose output is still read after a Ctrl-C: otherwise it would die at the next line that it prints, before
    its checkpoint. Whoever started it ends it. Output that is not UTF-8 does not end the run. A process that it leaves
    behind does not keep its output open. The folder of its program, which nobody removes, is in the run's folder.
    """

    def __init__(self, command: list[str], **named: Any) -> None:
        command = [part.replace(_FOLDER_OF_PROGRAM, _FOLDER_IN_RUN) for part in command]
        self._step = secrets.token_hex(8)
        named["env"] = {**(named.get("env") or os.environ), "PYTHONIOENCODING": "utf-8", STEP: self._step}
        super().__init__(command, **named, encoding="utf-8", errors="replace")
        threading.Thread(target=self._end_what_it_leaves).start()

    def __exit__(self, kind: Any, *others: Any) -> None:
        if kind is None or not issubclass(kind, KeyboardInterrupt):
            super().__exit__(kind, *others)
        else:
            threading.Thread(target=self._pass_over, daemon=True).start()

    def _end_what_it_leaves(self) -> None:
        # By a signal it ends with the run, whose other processes may still write a checkpoint.
        if self.wait() >= 0:
            end_left_by_step(self._step)

    def _pass_over(self) -> None:
        with suppress(OSError, ValueError):
            for _ in self.stdout or ():
                pass


def _whose_numbers_are_read(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Runs a step; it fails if it leaves numbers that no platform can read, as it does there."""
    from kfp.local.status import Status

    def run(handler: Any) -> Any:
        ended, command = original(handler), handler.full_command
        told = next(after for before, after in pairwise(command) if before in ("--executor_input", "--input"))
        file = Path(json.loads(told)["outputs"]["outputFile"])
        if ended != Status.SUCCESS or not file.is_file():
            return ended
        try:
            finite_json(file.read_text(encoding="utf-8"))
        except ValueError as error:
            print(f"error: {error}")
            return Status.FAILURE
        return ended

    return run


class _Turns:
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


def _noting(original: Callable[..., Any], errors: list[Exception], turns: _Turns) -> Callable[..., Any]:
    """Runs a task; one with which the runner cannot continue has failed, so that the exit handlers still run."""
    from kfp.local.status import Status

    def execute(*, task_spec: Any, **named: Any) -> Any:
        if turns.are_over.is_set():
            raise RuntimeError("The run was interrupted.")
        try:
            return original(task_spec=_without_unmade(task_spec, named["components"], named["io_store"]), **named)
        except Exception as error:
            errors.append(error)
            if turns.are_over.is_set():
                raise
            return {}, Status.FAILURE

    return execute


def _without_unmade(task_spec: Any, components: Any, io_store: Any) -> Any:
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
            if source.producer_task and not _is_made(source.producer_task, output, io_store):
                del inputs[name]
    return told


def _selected(value: Any, expression: str) -> Any:
    try:
        return selected(expression, value)
    except ApiError as error:
        raise ValueError(error.message) from error


def _of_branches_that_ran(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
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


def _is_made(task: str, output: str, io_store: Any) -> bool:
    try:
        io_store.get_task_output(task, output)
    except ValueError:
        return False
    return True


def _with_inputs_in_conditions(original: Callable[..., Any]) -> Callable[..., Any]:
    """Writes the values of its names into each condition: the runner evaluates only its text."""

    def run(*, dag_component_spec: Any, **named: Any) -> Any:
        told = type(dag_component_spec)()
        told.CopyFrom(dag_component_spec)
        for name, task in told.dag.tasks.items():
            if condition := task.trigger_policy.condition:
                inputs = _alone(task.inputs, "parameters").SerializeToString()
                task.trigger_policy.condition = json.dumps([name, condition, inputs.hex()])
        return original(dag_component_spec=told, **named)

    return run


def _is_met(condition: str, io_store: Any) -> bool:
    """Whether the condition of a branch is met, as `_with_inputs_in_conditions` wrote it."""
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


def _loop(original: Callable[..., bool]) -> Callable[..., bool]:
    """Runs a loop with known inputs and items, whose outputs are lists over the turns that made some."""

    def run(*, task_name: str, task_spec: Any, components: Any, io_store: Any, **named: Any) -> bool:
        if task_spec.WhichOneof("iterator") == "parameter_iterator":
            task_spec = _with_known_inputs(task_spec, io_store)
        failed = original(task_name=task_name, task_spec=task_spec, components=components, io_store=io_store, **named)
        outputs = components[task_spec.component_ref.name].output_definitions
        for key in () if failed else (*outputs.parameters, *outputs.artifacts):
            made = io_store.get_task_output(task_name, key) if _is_made(task_name, key, io_store) else []
            # An inner branch may not have run. Lists of artifacts become one list, as artifacts have no lists of lists.
            made = [each for each in made if each is not None]
            if key in outputs.artifacts:
                made = [one for each in made for one in (each if isinstance(each, list) else [each])]
            io_store.put_task_output(task_name, key, made)
        return failed

    return run


def _artifacts_of_loop(task_spec: Any, io_store: Any, task_name: str) -> tuple[list[Any], str, int]:
    """The artifacts that a loop is over, by the name that its part gives them; the runner knows only steps' names."""
    from kfp.local.orchestrator.orchestrator_utils import OrchestratorUtils

    iterator = task_spec.artifact_iterator
    held = OrchestratorUtils.make_task_arguments(_alone(task_spec.inputs, "artifacts"), io_store)
    return held[iterator.items.input_artifact], iterator.item_input, task_spec.iterator_policy.parallelism_limit


def _with_known_inputs(task_spec: Any, io_store: Any) -> Any:
    """A loop with its items and the values of its parameters in place of references to them."""
    from kfp.compiler.pipeline_spec_builder import to_protobuf_value
    from kfp.local.orchestrator.orchestrator_utils import OrchestratorUtils

    known = type(task_spec)()
    known.CopyFrom(task_spec)
    values = OrchestratorUtils.make_task_arguments(_alone(task_spec.inputs, "parameters"), io_store)
    for name, value in values.items():
        known.inputs.parameters[name].Clear()
        known.inputs.parameters[name].runtime_value.constant.CopyFrom(to_protobuf_value(value))
    source = known.parameter_iterator.items
    items = source.raw if source.HasField("raw") else values[source.input_parameter]
    # A list may be a JSON text; the runner would go through its letters.
    source.raw = items if isinstance(items, str) else json.dumps(items)
    return known


def _alone(inputs: Any, kind: str) -> Any:
    """The parameters or the artifacts of a task's inputs."""
    alone = type(inputs)()
    alone.CopyFrom(inputs)
    alone.ClearField("artifacts" if kind == "parameters" else "parameters")
    return alone

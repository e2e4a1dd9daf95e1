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

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_pipelines.targets.kfp_parts import Replacement, replaced
from gpu_pipelines.targets.local.runner import inputs, loops_and_branches
from gpu_pipelines.targets.local.runner.kfp_results import FilesElsewhere, key_of_each_step, place_of_each_training
from gpu_pipelines.targets.local.runner.step_process import ReadToItsEnd, whose_numbers_are_read


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
    turns = loops_and_branches.Turns()
    parts = partial(_replacements, errors, turns, FilesElsewhere(runs))
    with replaced(parts, "runs pipelines on this machine"):
        try:
            yield errors
        finally:
            turns.wait()


def _replacements(errors: list[Exception], turns: loops_and_branches.Turns, files: FilesElsewhere) -> list[Replacement]:
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
        (pipeline_spec_builder, "to_protobuf_value", inputs.with_nulls),
        (placeholder_utils, "resolve_individual_placeholder", inputs.with_all_of_the_run),
        (executor_input_utils, "executor_input_to_dict", inputs.whole_numbers),
        (executor_input_utils, "construct_executor_input", inputs.with_values_alone),
        (OrchestratorUtils, "join_user_inputs_and_defaults", inputs.with_optional_ones),
        (orchestrator.task_spec_utils, "build_nested_dag_arguments", inputs.with_own_defaults),
        (orchestrator.task_spec_utils, "get_artifact_iterator_items", lambda _: loops_and_branches.artifacts_of_loop),
        (
            OrchestratorUtils,
            "make_task_arguments",
            lambda original: place_of_each_training(inputs.with_outputs_filled_in(original)),
        ),
        (OrchestratorUtils, "_apply_expression_selector", lambda _: loops_and_branches.selected_part),
        (OrchestratorUtils, "get_dag_outputs", loops_and_branches.of_branches_that_ran),
        (orchestrator, "run_enhanced_dag", loops_and_branches.with_inputs_in_conditions),
        (orchestrator.ConditionEvaluator, "evaluate_condition", lambda _: loops_and_branches.is_met),
        (orchestrator, "_run_parallel_for_task", loops_and_branches.with_known_turns),
        (orchestrator, "execute_task", partial(_noting, errors=errors, turns=turns)),
        (task_dispatcher, "run_single_task_implementation", turns.ended),
        (orchestrator, "concurrent", lambda _: SimpleNamespace(futures=turns)),
        # Steps that run at once would undo it out of turn: it stays, and each one that stays doubles what is printed.
        (logging_utils, "indented_print", lambda _: nullcontext),
        (subprocess_task_handler.SubprocessTaskHandler, "run", whose_numbers_are_read),
        (
            subprocess_task_handler,
            "subprocess",
            lambda _: SimpleNamespace(**{**vars(subprocess), "Popen": ReadToItsEnd}),
        ),
        (LocalCache, "compute_key", key_of_each_step),
        (LocalCache, "_serialize_value_for_key", files.in_keys),
        (LocalCache, "_serialize_artifact", files.kept),
        (LocalCache, "_deserialize_artifact", partial(files.taken, missing=_MissingArtifactError)),
    ]


def _noting(
    original: Callable[..., Any], errors: list[Exception], turns: loops_and_branches.Turns
) -> Callable[..., Any]:
    """Runs a task; one with which the runner cannot continue has failed, so that the exit handlers still run."""
    from kfp.local.status import Status

    def execute(*, task_spec: Any, **named: Any) -> Any:
        if turns.are_over.is_set():
            raise RuntimeError("The run was interrupted.")
        try:
            return original(task_spec=inputs.without_unmade(task_spec, named["components"], named["io_store"]), **named)
        except Exception as error:
            errors.append(error)
            if turns.are_over.is_set():
                raise
            return {}, Status.FAILURE

    return execute

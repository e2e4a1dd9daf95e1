"""What is often wrong in the file of a pipeline, and KFP does not say: a name, or an `if` of Python."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from gpu_pipelines.errors import UserError, nearest
from gpu_pipelines.targets.own.references import IN_A_PIPELINE

_LOST = re.compile(r"component_input_\w+: \S+ not found")
_UNKNOWN = re.compile(r"(?:cannot import name|unexpected keyword argument) ['\"](\w+)['\"]")


def meant(error: BaseException) -> str:
    """A sentence with the name that was probably meant, or with those that there are; empty if no name is wrong.

    Args:
        error: what the file raised.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    unknown = _UNKNOWN.search(str(error))
    if unknown and isinstance(error, ImportError):
        return nearest(unknown[1], dir(sys.modules.get(error.name or "")), otherwise="")
    if unknown and frames and (component := frames[-1].f_locals.get("self")) and hasattr(component, "component_spec"):
        inputs = component.component_spec.inputs or {}
        if unknown[1] in inputs:
            return f"KFP itself fills in {unknown[1]}, the state of the run: leave it out."
        return nearest(unknown[1], inputs)
    if isinstance(error, KeyError) and frames:
        return _outputs_in(frames[-1])
    if frames and (whole := _whole_task_in(frames[-1])):
        such = (
            f"Give one of its outputs, such as task.outputs[{next(iter(whole.outputs))!r}]. " if whole.outputs else ""
        )
        return f"{such}{_told(whole)}"
    return IN_A_PIPELINE if isinstance(error, AssertionError) and _LOST.search(str(error)) else ""


def _outputs_in(frame: FrameType) -> str:
    """The outputs of the tasks that a function has in its variables, if it asks for an output in this line."""
    from kfp.dsl.pipeline_task import PipelineTask

    if ".outputs[" not in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
        return ""
    tasks = {each.name: each for each in frame.f_locals.values() if isinstance(each, PipelineTask)}
    return " ".join(map(_told, tasks.values()))


def _told(task: Any) -> str:
    return f"The outputs of {task.name}: {', '.join(task.outputs) or 'none'}."


def _whole_task_in(frame: FrameType) -> Any:
    """The task that was given in place of one of its outputs, or asked for its only one; None for anything else.

    Args:
        frame: of KFP, where it refused it.
    """
    from kfp.dsl.pipeline_task import PipelineTask

    given = frame.f_locals.get("self" if frame.f_code.co_name == "output" else "argument_value")
    return given if isinstance(given, PipelineTask) else None


@contextmanager
def no_truth_of_values(path: Path) -> Iterator[None]:
    """Refuses an `if`, `and`, `or` or `not` of a file on a value that is known only when the pipeline runs.

    Python takes every such value for true, so the steps of the branch would always run.

    Args:
        path: the file.
    """
    from kfp.dsl.pipeline_channel import ConditionOperation, PipelineChannel

    def is_true(_: Any) -> bool:
        frame = sys._getframe(1)
        if frame.f_code.co_filename == str(path.resolve()):
            raise UserError(
                f"{path}, line {frame.f_lineno}: `if`, `and`, `or` and `not` of Python see no value of a run: they are "
                "decided when the pipeline is compiled, as if it were true.",
                "Put the steps of a branch below `with dsl.If(passed == True):` or the like.",
            )
        return True

    kinds: tuple[Any, ...] = (ConditionOperation, PipelineChannel)
    for kind in kinds:
        kind.__bool__ = is_true
    try:
        yield
    finally:
        for kind in kinds:
            if "__bool__" in vars(kind):  # not if this file has run another that is a pipeline
                del kind.__bool__

"""Spares KFP from reading the source of all callers when it needs only the name of one."""

from __future__ import annotations

import inspect
import traceback
from types import ModuleType


def name_callers_without_source() -> None:
    """Lets KFP find its caller's name quickly, from now on in this process.

    At each setting of a task it asks `inspect.stack()` for that name, which reads the source of every caller and
    searches all modules for callers without source: this took a seventh of the time of `compile --all`.
    """
    from kfp.dsl import pipeline_task

    quick = ModuleType(inspect.__name__)
    vars(quick).update(vars(inspect), stack=_stack)
    pipeline_task.inspect = quick


def _stack() -> list[inspect.FrameInfo]:
    """The result of `inspect.stack` without the lines of source; the innermost call is this one's caller."""
    called = inspect.currentframe()
    return [
        inspect.FrameInfo(frame, frame.f_code.co_filename, line, frame.f_code.co_name, None, None)
        for frame, line in traceback.walk_stack(called.f_back if called else None)
    ]

"""What is often wrong in the file of a pipeline, and KFP does not say: an `if` of Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpu_pipelines.errors import UserError


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

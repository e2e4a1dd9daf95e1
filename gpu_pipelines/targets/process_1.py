"""A component's command with the shell replaced by what it starts, so that a signal reaches the step."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_pipelines.errors import UserError

#: What KFP starts a component with, and the same with the shell replaced by it: the container's process 1 is what gets
#: SIGTERM, and a shell does not pass it on.
_EXECUTOR, _EXECUTOR_AS_PROCESS_1 = "_KFP_RUNTIME=true python3 -m", "export _KFP_RUNTIME=true; exec python3 -m"


def as_process_1(command: Sequence[str]) -> list[str]:
    """The command of a component's container in which the step takes the place of the shell.

    Args:
        command: as KFP compiles it.

    Raises:
        UserError: KFP starts the step in another way than is known here.
    """
    if not any(_EXECUTOR in part for part in command):
        raise UserError(
            f"The container's command has no {_EXECUTOR!r}, so a SIGTERM would not reach the step.",
            "Take a component made by @dsl.component, with the version of kfp in constraints.txt.",
        )
    return [part.replace(_EXECUTOR, _EXECUTOR_AS_PROCESS_1) for part in command]

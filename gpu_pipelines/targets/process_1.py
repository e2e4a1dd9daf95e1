"""A component's command in which the shell is replaced by the program it starts, so that a signal reaches the step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from gpu_pipelines.errors import UserError

#: KFP's command for a component, and the same with the shell replaced: SIGTERM goes to the container's process 1, and a
#: shell does not pass it on.
_MODULE = "kfp.dsl.executor_main"
_EXECUTOR, _EXECUTOR_AS_PROCESS_1 = "_KFP_RUNTIME=true python3 -m", "export _KFP_RUNTIME=true; exec python3 -m"

#: The same for a step that installs packages first.
_AFTER_INSTALLATION, _AS_PROCESS_1 = '&& "$0" "$@"', '&& exec "$0" "$@"'


def as_process_1(command: Sequence[str]) -> list[str]:
    """The command of a component's container in which the step replaces the shell.

    Args:
        command: as KFP compiles it; the command of a program that is not a Python component stays as it is.

    Raises:
        UserError: KFP starts the step in an unknown way.
    """
    if not any(_MODULE in part for part in command):
        return list(command)
    if not any(_EXECUTOR in part for part in command):
        raise UserError(
            f"The container's command has no {_EXECUTOR!r}, so a SIGTERM would not reach the step.",
            "Take a component made by @dsl.component, with the version of kfp in constraints.txt.",
        )
    replaced = ((_EXECUTOR, _EXECUTOR_AS_PROCESS_1), (_AFTER_INSTALLATION, _AS_PROCESS_1))
    return [reduce(lambda text, each: text.replace(*each), replaced, part) for part in command]

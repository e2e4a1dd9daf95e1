"""The process of a step that KFP's local runner starts."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_pipelines.numbers import finite_json
from gpu_pipelines.step_environment import RUN_DIRECTORY, STEP
from gpu_pipelines.targets.local.runner.processes import end_left_by_step

#: The part of a step's command that makes the folder of its program; and the same in the run's folder.
_FOLDER_OF_PROGRAM = "program_path=$(mktemp -d)"
_FOLDER_IN_RUN = f'program_path=$(mktemp -d "${RUN_DIRECTORY}/.program-XXXXXX")'


class ReadToItsEnd(subprocess.Popen[str]):
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


def whose_numbers_are_read(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
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

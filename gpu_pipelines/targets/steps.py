"""The steps of a run: their records, their observers, and the lines in their logs that are KFP's own."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpu_pipelines.errors import ERROR_PREFIX

#: Between the name of a task and the number of its turn.
TURN = " #"
_EXECUTOR = "[KFP Executor "
#: Bytes at the end of a log that are read for its last lines.
_END_OF_A_LOG = 64 * 1024


class Observer(Protocol):
    """Gets the events of a run while it runs."""

    def step_began(self, step: str) -> None: ...

    def step_said(self, step: str, line: str) -> None: ...

    def step_ended(self, step: StepRecord) -> None: ...


@dataclass
class StepRecord:
    """The record of one step.

    Attributes:
        name: name of the task in the pipeline, with dashes.
        status: running, succeeded, reused, failed, interrupted, or died with the run.
        seconds: its duration so far.
        log: its log file, relative to the run; None if it was reused.
        message: the error that it ended with; empty if it left none.
        taken: beginning of the key of its cached results, if it was reused.
        made_by: id of the run that made these; empty if that is not known.
        turn: parameters that distinguish it from other turns, such as `seed=2`; empty if there are none.
        place: folder of its outputs.
        kind: kind of the error that it failed with, as in `gpu_pipelines.errors`; empty if it is not known.
        is_tried_again: whether it failed, and another attempt followed (`set_retry`).
    """

    name: str
    status: str = "running"
    seconds: float = 0.0
    log: str | None = None
    message: str = ""
    taken: str = ""
    made_by: str = ""
    turn: str = ""
    place: str = ""
    kind: str = ""
    is_tried_again: bool = False
    started: float = field(default_factory=time.monotonic, repr=False, compare=False)

    @property
    def task(self) -> str:
        """Name of the task, without the number of its turn."""
        return self.name.partition(TURN)[0]

    @property
    def has_failed(self) -> bool:
        """Whether it failed for good."""
        return self.status == "failed" and not self.is_tried_again

    @property
    def label(self) -> str:
        """Its name for people: for a turn of a loop, with the parameters that only this turn has."""
        return f"{self.task} ({self.turn})" if self.turn else self.name

    def said(self, line: str) -> None:
        """Takes the message from a log line, for a service that keeps only the lines of a step."""
        if line.startswith(ERROR_PREFIX):
            self.message = line.removeprefix(ERROR_PREFIX)
        elif self.message:
            self.message += "\n" + line


class ExecutorLines:
    """Distinguishes the lines of KFP's executor from those of a step: messages, and the JSON of the inputs it prints.

    Attributes:
        given: these inputs; empty until they are known.
    """

    def __init__(self) -> None:
        self._input: list[str] | None = None
        self.given: dict[str, Any] = {}

    def include(self, line: str) -> bool:
        """Whether the next line of a step's output is the executor's."""
        if self._input is not None:
            self._input.append(line)
            if line == "}":
                with suppress(ValueError):
                    self.given = json.loads("\n".join(self._input))
                self._input = None
            return True
        if line.endswith("Got executor_input:"):
            self._input = []
        return line.startswith(_EXECUTOR)


def last_lines(log: Path, most: int) -> list[str]:
    """The last lines of a log that are not blank; none if it cannot be read.

    Only its end is read, because a script that prints each step leaves gigabytes.

    Args:
        log: the file.
        most: most lines to return.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _END_OF_A_LOG))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-most:]

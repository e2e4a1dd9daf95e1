"""Reads what KFP's local runner prints, and tells the steps apart.

The runner has no hooks: it prints when a task begins and ends, and between the two what the task prints, indented.
"""

from __future__ import annotations

import io
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO

from gpu_pipelines.errors import ERROR_PREFIX, UserError, left_error

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_BEGINS = re.compile(r"Executing task '(?P<task>[^']+)'")
_ENDS = re.compile(r"Task '(?P<task>[^']+)' finished with status (?P<status>SUCCESS|FAILURE)")
_REUSED = re.compile(r"Task (?P<task>\S+) cache hit \(key=")
_FROM_STEP = " " * 4
_EXECUTOR = "[KFP Executor "


class Observer(Protocol):
    """Is told how a run goes, while it runs."""

    def step_began(self, step: str) -> None: ...

    def step_said(self, step: str, line: str) -> None: ...

    def step_ended(self, step: StepRecord) -> None: ...


@dataclass
class StepRecord:
    """How one step went.

    Attributes:
        name: name of the task in the pipeline, with dashes.
        status: running, succeeded, reused, failed or interrupted.
        seconds: its duration so far.
        log: its log file, relative to the run; None if it was reused.
        message: the error that it ended with; empty if it left none.
    """

    name: str
    status: str = "running"
    seconds: float = 0.0
    log: str | None = None
    message: str = ""
    started: float = field(default_factory=time.monotonic, repr=False)

    def said(self, line: str) -> None:
        """Takes the message from the log of a service that keeps no more of a step than its lines."""
        if line.startswith(ERROR_PREFIX):
            self.message = line.removeprefix(ERROR_PREFIX)
        elif self.message:
            self.message += "\n" + line


class ExecutorLines:
    """Tells the lines of KFP's executor from those of a step: its messages, and the JSON of the inputs it prints."""

    def __init__(self) -> None:
        self._in_input = False

    def include(self, line: str) -> bool:
        """Whether the next line of a step's output is the executor's."""
        if self._in_input:
            self._in_input = line != "}"
            return True
        self._in_input = line.endswith("Got executor_input:")
        return line.startswith(_EXECUTOR)


class LocalLog(io.TextIOBase):
    """A text stream to stand in for stdout while the local runner runs.

    Args:
        directory: the run; each step's output goes to `logs/<step>.log` below it.
        error: the file in which a step leaves the error that it ends with.
        observer: is told of steps and of the lines that steps print themselves.
    """

    def __init__(self, directory: Path, error: Path, observer: Observer) -> None:
        self.steps: list[StepRecord] = []
        self._directory, self._error = directory, error
        self._observer = observer
        self._partial = ""
        self._file: TextIO | None = None
        self._executor = ExecutorLines()
        (directory / "logs").mkdir(parents=True, exist_ok=True)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self._line(_COLOR.sub("", line))
        return len(text)

    @property
    def running(self) -> StepRecord | None:
        return self.steps[-1] if self.steps and self.steps[-1].status == "running" else None

    def end_running(self, status: str) -> None:
        """Notes that the step that runs has ended in a way that the runner does not print."""
        if self.running:
            self._end(self.running, status)

    def _line(self, line: str) -> None:
        # A step's own lines are indented, so that nothing a step prints is taken for the runner's words.
        if line.startswith(_FROM_STEP) and self.running:
            self._from_step(line.removeprefix(_FROM_STEP))
        elif match := _BEGINS.search(line):
            self._begin(match["task"])
        elif (match := _ENDS.search(line)) and self.running:
            self._end(self.running, "succeeded" if match["status"] == "SUCCESS" else "failed")
        elif match := _REUSED.search(line):
            self.steps.append(StepRecord(match["task"], status="reused"))
            self._observer.step_ended(self.steps[-1])

    def _begin(self, task: str) -> None:
        step = StepRecord(task, log=f"logs/{task}.log")
        self.steps.append(step)
        self._error.unlink(missing_ok=True)
        self._file = (self._directory / f"logs/{task}.log").open("w", encoding="utf-8", buffering=1)
        self._observer.step_began(task)

    def _end(self, step: StepRecord, status: str) -> None:
        step.status = status
        step.seconds = time.monotonic() - step.started
        if isinstance(error := left_error(self._error), UserError):
            step.message = str(error)
        if self._file:
            self._file.close()
            self._file = None
        self._observer.step_ended(step)

    def _from_step(self, line: str) -> None:
        step = self.steps[-1]
        if self._file:
            self._file.write(line + "\n")
        if self._executor.include(line) or not line.strip():
            return
        self._observer.step_said(step.name, line)

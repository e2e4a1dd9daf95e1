"""Reads the output of KFP's local runner, and separates the steps.

The runner has no hooks: it logs when a task begins and ends, and in between prints what the task prints.
"""

from __future__ import annotations

import builtins
import io
import os
import re
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from gpu_pipelines.component_interface.parameter import shown_value
from gpu_pipelines.errors import UserError, left_error
from gpu_pipelines.evaluation.trainings import differing
from gpu_pipelines.targets.steps import TURN, ExecutorLines, Observer, StepRecord

_PRINT = builtins.print
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_BEGINS = re.compile(r"Executing task '(?P<task>[^']+)'")
_ENDS = re.compile(r"Task '(?P<task>[^']+)' finished with status (?P<status>SUCCESS|FAILURE)")
_TRIED_AGAIN = re.compile(r"Task \S+ failed \(attempt [0-9]+/[0-9]+\)\. Retrying")
_REUSED = re.compile(r"Task (?P<task>\S+) cache hit \(key=(?P<key>[0-9a-f]*)")
#: Parameter that pipelines, not users, set for each turn of a step.
_NO_DIFFERENCE = "checkpoint_uri"
#: Most characters of a parameter in the name of a turn.
_LONGEST_VALUE = 40


@dataclass
class _Open:
    """A running step, its log, its unfinished line, and the filter for its own lines."""

    step: StepRecord
    file: TextIO
    partial: list[str] = field(default_factory=lambda: [""])
    executor: ExecutorLines = field(default_factory=ExecutorLines)


class LocalLog(io.TextIOBase):
    """A text stream that replaces stdout while the local runner runs.

    The turns of a loop run at the same time, each in a thread of its own, so a line belongs to the step that began in
    the thread that prints it. Steps print with this object's `print`, so that their lines are not taken for the
    runner's.

    Args:
        directory: directory of the run; each step's output goes to `logs/<step>.log` below it.
        error: the file in which a step leaves the error that it ends with.
        observer: gets the events of steps and their own lines.
        steps: gets the steps as they begin; left out, a new list does.
        unshown: names of tasks that are not steps.

    Attributes:
        steps: the steps that began, in order.
        is_interrupted: whether the run was interrupted, and its steps are being ended.
    """

    def __init__(
        self,
        directory: Path,
        error: Path,
        observer: Observer,
        steps: list[StepRecord] | None = None,
        unshown: Collection[str] = (),
    ) -> None:
        self.steps: list[StepRecord] = [] if steps is None else steps
        self._directory, self._error = directory, error
        self._observer, self._unshown = observer, frozenset(unshown)
        self.is_interrupted = False
        self._words = [""]
        self._open: dict[int, _Open] = {}
        # The step that ended last in each thread.
        self._ended: dict[int, StepRecord] = {}
        # The inputs of each step, by its name.
        self._told: dict[str, dict[str, Any]] = {}
        self._lock = threading.RLock()
        (directory / "logs").mkdir(parents=True, exist_ok=True)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Takes the runner's own lines."""
        with self._lock:
            lines = self._complete(self._words, text)
            for line in lines:
                self._line(_COLOR.sub("", line))
        return len(text)

    def print(self, *values: Any, sep: str | None = " ", end: str | None = "\n", **others: Any) -> None:
        """Replaces Python's `print`, with which the runner passes on a step's output, in the step's own thread."""
        step = self._open.get(threading.get_ident())
        text = (sep or " ").join(map(str, values)) + ("\n" if end is None else end)
        if others.get("file") or step is None:
            _PRINT(*values, sep=sep, end=end, **others)
        else:
            with self._lock:
                for line in self._complete(step.partial, text):
                    self._from_step(step, _COLOR.sub("", line))

    @staticmethod
    def _complete(partial: list[str], text: str) -> list[str]:
        """The lines that a text completes; the rest of it is kept."""
        *lines, partial[0] = (partial[0] + text).split("\n")
        return lines

    @property
    def running(self) -> StepRecord | None:
        """A running step; if there are several, the one that began last."""
        return next((step for step in reversed(self.steps) if step.status == "running"), None)

    def end_running(self, status: str) -> None:
        """Records that running steps have ended in a way that the runner does not print."""
        for thread in list(self._open):
            self._end(thread, status)

    def _line(self, line: str) -> None:
        thread = threading.get_ident()
        if match := _BEGINS.search(line):
            self._begin(thread, match["task"])
        elif thread in self._open and (match := _ENDS.search(line)):
            ended = "succeeded" if match["status"] == "SUCCESS" else "failed"
            self._end(thread, "interrupted" if self.is_interrupted else ended)
        elif thread in self._ended and _TRIED_AGAIN.search(line):
            self._ended[thread].is_tried_again = True
        elif match := _REUSED.search(line):
            self.steps.append(StepRecord(self._new_name(match["task"]), status="reused", taken=match["key"]))
            self._observer.step_ended(self.steps[-1])

    def _new_name(self, task: str) -> str:
        """The name of a task, with a number if it ran before, in another turn of a loop or another attempt."""
        before = sum(1 for step in self.steps if step.task == task)
        return f"{task}{TURN}{before + 1}" if before else task

    def _begin(self, thread: int, task: str) -> None:
        if task in self._unshown:
            return
        name = self._new_name(task)
        step = StepRecord(name, log=f"logs/{name.replace(TURN, '.')}.log")
        self.steps.append(step)
        self._error.unlink(missing_ok=True)
        self._open[thread] = _Open(step, self._file(step))
        self._observer.step_began(name)

    def _file(self, step: StepRecord) -> TextIO:
        """The log of a step; if it cannot be created or written, its lines are lost."""
        try:
            return (self._directory / str(step.log)).open("w", encoding="utf-8", buffering=1)
        except OSError:
            return Path(os.devnull).open("w", encoding="utf-8")

    def _end(self, thread: int, status: str) -> None:
        ended = self._open.pop(thread)
        with suppress(OSError):
            ended.file.close()
        self._ended[thread] = step = ended.step
        step.status = status
        step.seconds = time.monotonic() - step.started
        error = left_error(self._error) if status != "succeeded" else None
        if isinstance(error, UserError):
            step.message, step.kind = str(error), error.kind
        elif error and status == "failed":  # it ended by itself like an interrupted step
            step.message = f"it was interrupted: {error}"
        self._observer.step_ended(step)

    def _from_step(self, step: _Open, line: str) -> None:
        with suppress(OSError):  # a full disk loses some lines, but not the step
            step.file.write(line + "\n")
        if step.executor.given and step.step.name not in self._told:
            self._note_inputs(step.step, step.executor.given)
        if not step.executor.include(line) and line.strip():
            self._observer.step_said(step.step.name, line)

    def _note_inputs(self, step: StepRecord, given: Mapping[str, Any]) -> None:
        """Records the inputs of a step, where it writes, and how the turns of its task differ."""
        told = given.get("inputs", {}).get("parameterValues", {})
        self._told[step.name] = {name: value for name, value in told.items() if name != _NO_DIFFERENCE}
        if place := given.get("outputs", {}).get("outputFile"):
            step.place = str(Path(place).parent)
        turns = {each.name: each for each in self.steps if each.task == step.task and each.name in self._told}
        for name, alone in differing({name: self._told[name] for name in turns}).items():
            turns[name].turn = ", ".join(f"{key}={shown_value(value)}"[:_LONGEST_VALUE] for key, value in alone.items())

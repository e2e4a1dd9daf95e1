"""Shows progress while something is waited for."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from gpu_pipelines.targets.steps import Observer, StepRecord


class StreamWatch:
    """Shows progress on a stream, which is fixed here; see `gpu_pipelines.targets.messages.Watch`.

    Args:
        stream: stdout if not given.
        steps: whether to show steps and lines of logs besides events.
    """

    def __init__(self, stream: TextIO | None = None, *, steps: bool = True) -> None:
        from gpu_pipelines.terminal import console_on

        self._stream, self._steps = stream or sys.stdout, steps
        self.console = console_on(self._stream)

    def steps(self) -> AbstractContextManager[Observer]:
        """Shows steps live on a terminal, and in plain lines elsewhere."""
        from gpu_pipelines.driver.progress import progress_on

        return progress_on(self.console) if self._steps else nullcontext(_Silent())

    def tell(self, text: str) -> None:
        """Prints an event."""
        print(f"{time.strftime('%H:%M:%S')} {text}", file=self._stream, flush=True)

    def say(self, line: str) -> None:
        """Prints a line of a log."""
        if self._steps:
            print(f"  {line}", file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """Warns on stderr."""
        print(f"warning: {text}", file=sys.stderr)


class SilentWatch(StreamWatch):
    """Shows only warnings, for whoever needs only the result."""

    def __init__(self) -> None:
        super().__init__(sys.stderr, steps=False)

    def tell(self, text: str) -> None:
        return None


class _Silent:
    """An observer that shows nothing."""

    def step_began(self, step: str) -> None:
        return None

    def step_said(self, step: str, line: str) -> None:
        return None

    def step_ended(self, step: StepRecord) -> None:
        return None

"""What workers do in the tests of executors."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from gpu_pipelines.errors import NotFoundError, UserError


class Square:
    """Notes the process that it is made in, and squares numbers."""

    def __init__(self, folder: str = "", seconds: float = 0.0) -> None:
        self._seconds = seconds
        if folder:
            (Path(folder) / f"{os.getpid()}-{time.monotonic_ns()}").touch()

    def __call__(self, number: int) -> tuple[int, int]:
        time.sleep(self._seconds)
        return number**2, os.getpid()


class SlowFirst:
    """Takes long for the first piece alone, until a file is there."""

    def __init__(self, until: str) -> None:
        self._until = Path(until)

    def __call__(self, number: int) -> int:
        while number == 0 and not self._until.exists():
            time.sleep(0.01)
        return number


class Fails:
    """Fails with piece 7."""

    def __call__(self, number: int) -> int:
        if number == 7:
            raise NotFoundError("The bucket b is not there.", "Create it.") from UserError("why")
        return number


class FailsUnexplained:
    """Divides by zero with piece 7."""

    def __call__(self, number: int) -> float:
        return 1 / (number - 7)


class KillsItself:
    """Kills its process with piece 7, so many times."""

    def __init__(self, folder: str, times: int) -> None:
        self._folder, self._times = Path(folder), times

    def __call__(self, number: int) -> int:
        if number == 7 and len(list(self._folder.iterdir())) < self._times:
            (self._folder / str(time.monotonic_ns())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
        return number


def made_nowhere() -> Square:
    """A maker that fails."""
    raise NotFoundError("No model.", "Train one.")

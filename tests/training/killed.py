"""A program that is killed again and again until it ends by itself."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

_TIMES_BEGUN = 6


def killed_again_and_again(
    start: Callable[[Path], subprocess.Popen[str]], places: Path, seconds: float, asked: int, least: int, most: int
) -> Path:
    """Where the program has ended well, after it was asked to end, and killed, at random moments in turn.

    A machine is not always as fast: where the program ends too early, it is begun elsewhere, and killed sooner.

    Args:
        start: starts it in a folder, or goes on there.
        places: of the folders.
        seconds: how long it takes by itself.
        asked: the signal that asks it to end.
        least: how often it is killed or asked.
        most: the same.
    """
    generator = random.Random(0)
    for begun in range(_TIMES_BEGUN):
        folder, killed = places / f"killed-{begun}", 0
        while True:
            process = start(folder)
            moment = generator.uniform(0.1, 0.4) * seconds / 2**begun
            try:
                output, _ = process.communicate(timeout=moment if killed < most else 300)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL if killed % 2 else asked)
                process.communicate(timeout=60)
                killed += 1
                continue
            assert process.returncode == 0, output
            break
        if killed >= least:
            return folder
    pytest.fail(f"it ended by itself {_TIMES_BEGUN} times before it was killed {least} times")

"""Ends everything that a run has started on this machine."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

# As long as a training has to write its last checkpoint.
SECONDS_TO_END = 35.0
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@contextmanager
def no_process_left_behind() -> Iterator[None]:
    """Ends all processes below this one if the block is left by an exception, SIGTERM and Ctrl-C among them.

    torchrun starts its workers in sessions of their own, which a Ctrl-C at the terminal does not reach. While the block
    runs, orphans of this process's children come to it instead of to init, so that they can be found.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except BaseException:
        # A second Ctrl-C must not interrupt the cleaning up.
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_children()
        signal.signal(signal.SIGINT, interrupt)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def end_children() -> None:
    """Asks all processes below this one to end (SIGTERM), and kills those that have not in time."""
    import psutil

    children = psutil.Process().children(recursive=True)
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    psutil.wait_procs(children, timeout=SECONDS_TO_END)
    left = psutil.Process().children(recursive=True)
    for child in left:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(left, timeout=SECONDS_TO_END)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt

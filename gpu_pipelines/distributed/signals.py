"""Signals: the only module that sets their handlers."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

#: Signals that ask a program to end: from a platform that takes the machine away, and Ctrl-C.
ASKING = (signal.SIGTERM, signal.SIGINT)
#: Signals that end a program: those, and the end of its terminal, such as when an SSH connection is lost.
ENDING = (*ASKING, signal.SIGHUP)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_BETWEEN_NUDGES = 1.0


class Signalled:
    """Whether this process got a signal, and which.

    A signal is only noted: an exception from a handler could strike anywhere, and a second one during the clean-up.

    Attributes:
        name: of the last signal, such as "SIGTERM"; empty before one comes.
        since: when the first came, on the clock of `time.monotonic`; None before.
    """

    def __init__(self) -> None:
        self.name = ""
        self.since: float | None = None

    def __bool__(self) -> bool:
        return bool(self.name)

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """The handler."""
        self.name = signal.Signals(number).name
        self.since = self.since or time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Waits for a signal, for so long at most; returns whether one came."""
        deadline = time.monotonic() + seconds
        while not self and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _SECONDS_BETWEEN_LOOKS))
        return bool(self)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], numbers: tuple[int, ...] = ENDING) -> Iterator[None]:
    """Passes signals to a handler while the block runs, if this is the main thread, where signals arrive."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def called(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _leave_terminal()
        handler(number, frame)

    # nohup sets it to ignored: its user wants the program to go on.
    taken = [each for each in numbers if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, called) for number in taken}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def nudged() -> Iterator[None]:
    """Makes no call of the block keep waiting after a signal, if this is the main thread.

    Python runs handlers between its own instructions. A signal just before a call that waits, such as one that reads a
    pipe, would be handled only when that call returns. So each second a signal without meaning ends the waiting, which
    Python resumes (PEP 475) if there is nothing to handle.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()
    main = threading.get_ident()

    def nudge() -> None:
        while not over.wait(_SECONDS_BETWEEN_NUDGES):
            signal.pthread_kill(main, signal.SIGURG)

    before = signal.signal(signal.SIGURG, lambda number, frame: None)
    nudging = threading.Thread(target=nudge, daemon=True)
    nudging.start()
    try:
        yield
    finally:
        over.set()
        nudging.join()
        signal.signal(signal.SIGURG, before)


def interrupt(number: int, frame: FrameType | None = None) -> None:
    """A handler that makes a signal act like Ctrl-C.

    Raises:
        KeyboardInterrupt: always.
    """
    raise KeyboardInterrupt


@contextmanager
def noted() -> Iterator[Signalled]:
    """Notes signals that end a program while the block runs."""
    signalled = Signalled()
    with handled(signalled.note):
        yield signalled


def noted_by_a_worker() -> Signalled:
    """Notes SIGTERM from now on, and ignores other signals that end a program.

    A Ctrl-C, and the end of the terminal, reach the whole process group; the process that started this one turns them
    into a SIGTERM.
    """
    signalled = Signalled()
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signalled.note)
    return signalled


def leave_to_the_starter() -> None:
    """Makes this process ignore signals that end a program: its starter ends it, and it ends with its starter."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    end_with_the_starter()


def _leave_terminal() -> None:
    """Discards what this process prints: writing to a terminal that has ended is an error."""
    for stream in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream)
                os.close(nowhere)


def end_with_the_starter() -> None:
    """Makes the kernel kill this process when the thread that started it is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Makes this process, in place of init, the parent of its children's orphans, so that they can be found."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

"""Processes that tests start: what they print, where they listen, and how they are ended."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from forked import Forked


@dataclass
class Started:
    """A process, and where its output goes."""

    process: subprocess.Popen[bytes] | Forked
    log: Path

    def wait(self, seconds: float = 120) -> int:
        return self.process.wait(seconds)

    @property
    def output(self) -> str:
        return self.log.read_text()

    def await_line(self, text: str, seconds: float = 90) -> None:
        assert not self.await_line_or_end(text, seconds), self.output

    def await_line_or_end(self, text: str, seconds: float = 90) -> bool:
        """Waits until the process says something; whether it has ended without."""
        deadline = time.monotonic() + seconds
        while text not in self.output:
            if self.process.poll() is not None:
                return text not in self.output
            assert time.monotonic() < deadline, f"no {text!r} in:\n{self.output}"
            time.sleep(0.02)
        return False

    def kill_tree(self) -> None:
        """Kills the process and everything that it has started, with SIGKILL."""
        kill_tree(self.process.pid)


def kill_tree(pid: int) -> None:
    """Kills a process and everything that it has started, with SIGKILL. One that has ended meanwhile is passed over."""
    with suppress(psutil.NoSuchProcess):
        own = psutil.Process(pid)
        for process in (*own.children(recursive=True), own):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def killing_before(calls: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What wraps functions, so that this process kills itself before the given one of all calls of them."""
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == calls:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return call

    return counted


class InTerminal:
    """A command in a terminal of its own, which may be closed while it runs."""

    def __init__(self, arguments: Sequence[str], cwd: Path) -> None:
        self._screen, terminal = os.openpty()
        self.process = subprocess.Popen(
            list(arguments),
            cwd=cwd,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=self._take_terminal,
        )
        os.close(terminal)

    @staticmethod
    def _take_terminal() -> None:
        # Below nohup its end would be ignored.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def await_file(self, pattern: str, text: str, folder: Path, seconds: float = 90) -> None:
        """Waits until a file says something, while the terminal shows what is printed."""
        deadline = time.monotonic() + seconds
        while not any(text in path.read_text() for path in folder.glob(pattern)):
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            if select.select([self._screen], [], [], 0.05)[0]:
                os.read(self._screen, 1 << 16)

    def close(self) -> None:
        """Closes the terminal, as a window or a connection is closed."""
        os.close(self._screen)


def start_python(
    arguments: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    inside: Sequence[str] = (),
    cwd: Path | None = None,
) -> Started:
    """Begins a program in Python.

    Args:
        arguments: of the interpreter. A module and a script begin as the copy of a process that has imported what they
            need, if they run where the test does.
        log: gets what it prints.
        environment: its variables; left out, those of the test.
        inside: a command that runs it elsewhere.
        cwd: where it runs; left out, where the test does.
    """
    variables = dict(os.environ if environment is None else environment)
    program = arguments[1:] if arguments[0] == "-m" else arguments
    if not (inside or cwd or program[0].startswith("-")):
        log.touch()
        return Started(Forked(program[0], program[1:], variables, log=log), log)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*inside, sys.executable, "-u", *arguments],
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
        )
    return Started(process, log)

"""Shows what programs write line by line: lines of several programs are not mixed, and progress bars come seldom."""

from __future__ import annotations

import re
import sys
import threading
import time
from codecs import getincrementaldecoder
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

#: The files in which torchrun keeps what a process writes.
STDOUT, STDERR = "stdout.log", "stderr.log"
_SECONDS_BETWEEN_READS = 0.1
#: How often the state of a progress bar is shown.
_SECONDS_BETWEEN_STATES = 15.0
#: Characters; a longer line is shown in parts.
_LONGEST_LINE = 1_000_000
#: Moves of the cursor, by which tqdm draws several bars.
_CURSOR = re.compile(r"\x1b\[[0-9;]*[A-HJK]")


class ShownLines:
    """Shows what a program writes, line by line; of a progress bar, which draws its line anew, few states.

    Args:
        to: standard output or error.
        prefix: is put before each line.
    """

    def __init__(self, to: TextIO, prefix: str = "") -> None:
        self._to, self._prefix, self._rest, self._shown_at = to, prefix, "", -_SECONDS_BETWEEN_STATES
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def add(self, chunk: bytes) -> None:
        """Takes what the program has written since."""
        *lines, rest = (self._rest + self._decoder.decode(chunk)).split("\n")
        for line in lines:
            if (state := last_state(line)) or line == state:
                self._show(state)
        before, drawn_anew, last = rest.rpartition("\r")
        self._rest = drawn_anew + (last or last_state(before))
        if drawn_anew and time.monotonic() - self._shown_at >= _SECONDS_BETWEEN_STATES and (state := last_state(rest)):
            self._shown_at = time.monotonic()
            self._show(state)
        if len(self._rest) > _LONGEST_LINE:
            self.end()

    def end(self) -> None:
        """Shows a line that is not finished."""
        if state := last_state(self._rest):
            self._show(state)
        self._rest = ""

    def _show(self, line: str) -> None:
        encoding = self._to.encoding or "utf-8"
        # Nobody may read it any more. The program goes on; it would wait for whoever takes what it writes.
        with suppress(OSError):
            self._to.write(f"{self._prefix}{line}\n".encode(encoding, "replace").decode(encoding))
            self._to.flush()


def last_state(line: str) -> str:
    """What a terminal shows of a line: what was drawn last, if that is not blank."""
    drawn = (part.rstrip() for part in reversed(_CURSOR.sub("", line).split("\r")))
    return next(filter(None, drawn), "")


def show_logs(logs: Path, first_rank: int, ended: threading.Event) -> None:
    """Shows what the processes of a node write; torchrun itself would mix their lines, and show each state of a bar.

    Args:
        logs: folder in which torchrun keeps it.
        first_rank: of the node; stderr has the rank before each line.
        ended: is set when the processes have ended.
    """
    shown: dict[Path, tuple[BinaryIO, ShownLines]] = {}
    with ExitStack() as files:
        is_last = False
        while not is_last:
            is_last = ended.wait(_SECONDS_BETWEEN_READS)
            for path in sorted(logs.glob(f"**/*/{STDERR}")) + sorted(logs.glob(f"**/*/{STDOUT}")):
                if path not in shown:
                    rank = f"[rank {first_rank + int(path.parent.name)}] "
                    lines = ShownLines(sys.stderr, rank) if path.name == STDERR else ShownLines(sys.stdout)
                    shown[path] = files.enter_context(path.open("rb")), lines
                file, lines = shown[path]
                lines.add(file.read())
        for _, lines in shown.values():
            lines.end()


def show_and_copy(output: BinaryIO, to: TextIO, log: Path) -> None:
    """Shows what a program writes, and copies it to a file, until it ends.

    Args:
        output: the pipe that it writes to.
        to: standard output or error.
        log: the file.
    """
    lines = ShownLines(to)
    with log.open("wb", buffering=0) as copy:
        while chunk := output.read1(65_536):  # type: ignore[attr-defined]
            copy.write(chunk)
            lines.add(chunk)
    lines.end()

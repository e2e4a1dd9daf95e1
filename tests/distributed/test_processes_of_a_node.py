"""The processes of a node: what they write is shown, and they are asked to end, and killed."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from typing import Any

import psutil
import pytest
from tqdm import tqdm

from gpu_pipelines.distributed.processes import Workers, _Lines


class Ended(Workers):
    """Whose process has ended since it was listed."""

    def _run(self) -> None: ...

    def processes(self) -> list[Any]:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        known = psutil.Process(child.pid)
        child.communicate()
        return [known]


def test_a_process_that_has_ended_meanwhile_is_no_error() -> None:
    workers = Ended()
    workers.ask_to_stop()
    workers.kill()


class Stderr(StringIO):
    """The stderr of a process, which is shown."""

    def __init__(self) -> None:
        self.lines = _Lines(sys.stderr, "[rank 1] ")

    def write(self, text: str) -> int:
        self.lines.add(text.encode())
        return len(text)


def test_of_a_progress_bar_a_few_states_are_shown_and_other_lines_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stderr = Stderr()
    for number in tqdm(range(2_000), file=stderr, mininterval=0, bar_format="{n}", ascii=True):
        if number == 1_000:
            tqdm.write("  half", file=stderr)
    for byte in "ü".encode():
        stderr.lines.add(bytes([byte]))
    stderr.write("\r\n\nlast")
    stderr.lines.end()
    assert capsys.readouterr().err.splitlines() == [
        f"[rank 1] {line}" for line in ("0", "  half", "2000", "ü", "", "last")
    ]

"""What programs write is shown line by line."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from io import BytesIO, StringIO
from pathlib import Path

import pytest
from tqdm import tqdm

from gpu_pipelines.distributed.program_output import ShownLines, show_and_copy


class Stderr(StringIO):
    """The stderr of a process, which is shown."""

    def __init__(self) -> None:
        self.lines = ShownLines(sys.stderr, "[rank 1] ")

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


def test_a_long_line_is_shown_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    show_and_copy(BytesIO(b"x" * 1_500_000 + b"\nend"), sys.stdout, Path(os.devnull))
    first, second, end = capsys.readouterr().out.splitlines()
    assert len(first) > 1_000_000
    assert (len(first + second), end) == (1_500_000, "end")


def test_a_program_goes_on_when_nobody_reads_what_it_writes(tmp_path: Path) -> None:
    program = "for _ in range(20_000): print('a line of a script')"
    reader, writer = os.pipe()
    os.close(reader)
    to, log = os.fdopen(writer, "w"), tmp_path / "log"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as script:
        assert script.stdout
        show_and_copy(script.stdout, to, log)
        assert script.wait(timeout=20) == 0
    assert log.read_bytes().count(b"\n") == 20_000
    with suppress(BrokenPipeError):  # of what it still holds
        to.close()

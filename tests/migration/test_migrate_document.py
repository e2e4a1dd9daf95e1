"""docs/migrating.md shows what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from conftest import gpu_pipelines

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
BLOCK = re.compile(r"```(?P<kind>yaml|console)\n(?P<text>.*?)```\n", re.DOTALL)


def shown(cwd: Path, line: str) -> str:
    """What a command of the page prints, on stdout and then on stderr."""
    words = shlex.split(line)
    if words[0] == "cat":
        return (cwd / words[1]).read_text()
    done = gpu_pipelines(*words[1:], cwd=cwd)
    assert done.status == 0, done.err
    return done.out + done.err


def test_every_command_of_the_page_prints_what_stands_there(tmp_path: Path, no_project_settings: None) -> None:
    commands = 0
    for block in BLOCK.finditer(PAGE.read_text()):
        first, _, rest = block["text"].partition("\n")
        if block["kind"] == "yaml":
            (tmp_path / first.removeprefix("# ")).write_text(rest)
        else:
            commands += 1
            assert shown(tmp_path, first.removeprefix("$ ")) == rest
    assert commands >= 3

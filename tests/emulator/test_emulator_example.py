"""The example of docs/emulator.md is run as its reader runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/emulator.md"


@pytest.mark.slow
def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n# test_mine.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "test_mine.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr

"""The benchmark of the console runs, and its last line is what other programs read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_benchmark_of_the_console() -> None:
    command = [sys.executable, "benchmarks/console.py", "--starts", "1", "--runs", "30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["benchmark"] == "console"
    assert found["results"]["console: start to first page"]["cpu_s"] > 0
    assert found["results"]["page with all runs"]["wall_s"] < 10

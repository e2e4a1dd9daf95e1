"""The benchmark of the command line runs and ends with its JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_last_line_of_the_benchmark_is_its_result() -> None:
    command = [sys.executable, "benchmarks/accelerators_cli.py", "--runs", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) == {"benchmark", "machine", "results", "ratios"}
    assert set(result["results"]) == {
        "accelerators --help",
        "accelerators plan h100:8",
        "python -c 'import kfp'",
        "an empty typer command",
        "python -c pass",
    }

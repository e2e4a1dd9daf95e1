"""The benchmark of the command line runs and ends with its JSON object."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
    # The aim is 0.2 s and 0.3 s; this only notices an import that does not belong there, on whatever machine it runs.
    assert result["ratios"]["python -c 'import kfp' / accelerators --help"] > 1.5
    assert result["ratios"]["python -c 'import kfp' / accelerators plan h100:8"] > 1

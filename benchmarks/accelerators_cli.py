"""The time of `accelerators plan` and `accelerators --help` as whole processes, beside importing kfp alone.

Run with `python benchmarks/accelerators_cli.py [--runs N]`. The processes take turns, so that a slow moment of the
machine affects all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

#: The shortest possible command with an argument.
BARE = """
import typer
app = typer.Typer()
@app.command()
def command(argument: str, option: int = 1) -> None: ...
app(["argument"])
"""
CLI = [str(Path(sys.executable).with_name("gpu-pipelines")), "accelerators"]
COMMANDS = {
    "accelerators --help": [*CLI, "--help"],
    "accelerators plan h100:8": [*CLI, "plan", "h100:8"],
    "python -c 'import kfp'": [sys.executable, "-c", "import kfp"],
    "an empty typer command": [sys.executable, "-c", BARE],
    "python -c pass": [sys.executable, "-c", "pass"],
}
PEER = "python -c 'import kfp'"


def seconds(command: list[str]) -> float:
    """Wall time of one process, seconds."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure(runs: int) -> dict[str, dict[str, float]]:
    """Median, least and greatest wall time of each command, seconds; one run before the first is not counted."""
    for command in COMMANDS.values():
        seconds(command)
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, command in COMMANDS.items():
            times[name].append(seconds(command))
    return {
        name: {"median_s": statistics.median(values), "min_s": min(values), "max_s": max(values)}
        for name, values in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=11)
    results = measure(parser.parse_args().runs)
    ratios = {f"{PEER} / {name}": results[PEER]["median_s"] / each["median_s"] for name, each in results.items()}
    print(f"{'whole process':<28} {'median s':>9} {'min s':>9} {'max s':>9} {'kfp is':>9}")
    for name, each in results.items():
        ratio = ratios[f"{PEER} / {name}"]
        print(f"{name:<28} {each['median_s']:>9.3f} {each['min_s']:>9.3f} {each['max_s']:>9.3f} {ratio:>8.1f}×")
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    print(json.dumps({"benchmark": "accelerators_cli", "machine": machine, "results": results, "ratios": ratios}))


if __name__ == "__main__":
    main()

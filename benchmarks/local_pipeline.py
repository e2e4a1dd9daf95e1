"""Times the whole local pipeline on the digits beside a bare training script, each as a whole process, in turns.

Run by `make bench`. Prints a table, and as its last line one JSON object.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 3
BIN = Path(sys.executable).parent
BARE = Path(__file__).with_name("bare_digits.py")


def timed(command: list[str], cwd: Path) -> float:
    """Wall time of a command, in seconds; an error of the command ends the benchmark."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2))}
    started = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - started


def main() -> None:
    """Runs both in turns and prints medians and their ratio."""
    seconds: dict[str, list[float]] = {"pipeline": [], "pipeline, data and training reused": [], "bare script": []}
    accuracies: list[float] = []
    steps: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        run = [str(BIN / "gpu-pipelines"), "run", "train_evaluate_upload", "--accelerator", "cpu:2"]
        bare = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", str(BARE), str(cwd / "bare")]
        for _ in range(ROUNDS):
            seconds["pipeline"].append(timed(run, cwd))
            record = json.loads(max(cwd.glob("runs/*/run.json")).read_text())
            for step in record["steps"]:
                steps.setdefault(step["name"], []).append(step["seconds"])
            evaluation = json.loads(Path(record["artifacts"]["best_checkpoint"], "evaluation.json").read_text())
            accuracies.append(evaluation["test"]["metrics"]["accuracy"]["value"])
            seconds["bare script"].append(timed(bare, cwd))
            seconds["pipeline, data and training reused"].append(timed([*run, "--cache"], cwd))
    medians = {name: round(statistics.median(values), 2) for name, values in seconds.items()}
    for name, median in medians.items():
        print(f"{name:36} {median:6.1f} s   ({min(seconds[name]):.1f} to {max(seconds[name]):.1f})")
    for name, values in steps.items():
        print(f"  step {name:29} {statistics.median(values):6.1f} s")
    print(f"test accuracy of the pipeline's model: {statistics.median(accuracies):.4f}")
    results = {**medians, "test accuracy": round(statistics.median(accuracies), 4)}
    ratios = {"pipeline / bare script": round(medians["pipeline"] / medians["bare script"], 2)}
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(json.dumps({"benchmark": "local_pipeline", "machine": machine, "results": results, "ratios": ratios}))


if __name__ == "__main__":
    main()

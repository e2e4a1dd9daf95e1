"""What a checkpoint every 20 steps costs in throughput: ours, written beside the training, and that of the others.

Run by `make bench-training`. Prints a table, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from contest import COMPILED, NAMES, Machine, conclude, median_ratio, run
from workloads import WORKLOADS

#: The stopwatch starts and stops right before a checkpoint, so that each interval in between has exactly one.
EVERY = 20
GOAL_PERCENT = 3.0


def main() -> None:
    """Runs each contender without and with checkpoints, one directly after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--intervals", type=int, default=5, help=f"of {EVERY} steps, counted after a first one")
    parser.add_argument("--models", default="ViT,GPT")
    parser.add_argument("--contenders", default=",".join(NAMES))
    asked = parser.parse_args()
    names = [name for name in (*NAMES, COMPILED) if name in asked.contenders.split(",")]
    machine = Machine.of(asked.device)
    results: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    steps = (asked.intervals + 1) * EVERY
    for workload in WORKLOADS[asked.device]:
        if workload.name not in asked.models.split(","):
            continue
        speeds: dict[tuple[str, int], list[float]] = {(name, every): [] for name in names for every in (0, EVERY)}
        with tempfile.TemporaryDirectory() as folder:
            prepared = workload.prepare(Path(folder))
            for number in range(asked.rounds):
                for name in names:
                    for every in (0, EVERY) if number % 2 else (EVERY, 0):
                        done = run(name, workload, prepared, machine, EVERY, steps, every)
                        speeds[name, every].append(done.samples_per_second)
        print(f"{workload.name}: {'contender':14} {'without':>9} {'with':>9} samples/s   cost in %")
        for name in names:
            without, saving = speeds[name, 0], speeds[name, EVERY]
            ratio = median_ratio(saving, without)
            cost = round(100 * (1 - ratio), 1)
            medians = [round(statistics.median(values), 1) for values in (without, saving)]
            results[f"{workload.name}: {name}"] = {"without": medians[0], "with": medians[1], "cost_percent": cost}
            ratios[f"{workload.name}: {name}, with / without"] = ratio
            goal = f"   goal at most {GOAL_PERCENT}" if name == "ours" else ""
            print(f"     {name:14} {medians[0]:9.1f} {medians[1]:9.1f}             {cost:9.1f}{goal}", flush=True)
    conclude("training_checkpoint_cost", machine, results, ratios)


if __name__ == "__main__":
    main()

"""Samples per second of our engine beside a hand-written DDP loop, Lightning and transformers.Trainer.

Run by `make bench-training`. Prints a table, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from contest import NAMES, Machine, Run, conclude, median_ratio, run
from workloads import WORKLOADS, Workload

#: With the same rows in the same order the loss of the hand-written loop must be ours after so many steps. Later on a
#: training amplifies how sums were rounded.
SAME_LOSS, SAME_STEPS = 1e-4, 30
GOALS = {
    "ViT": {"hand-written": 0.97, "lightning": 1.10, "transformers": 1.10},
    "GPT": {"lightning": 1.0, "transformers": 1.0},
}


def main() -> None:
    """Runs all contenders in turn, round after round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, help="in all; 0 for 600 of the ViT, 160 of the GPT")
    parser.add_argument("--warmup-steps", type=int, default=20, help="of these, not counted")
    parser.add_argument("--models", default="ViT,GPT")
    asked = parser.parse_args()
    machine = Machine.of(asked.device)
    results: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for workload in WORKLOADS[asked.device]:
            if workload.name not in asked.models.split(","):
                continue
            prepared = workload.prepare(Path(folder))
            results[f"{workload.name}: loss of ours - hand-written"] = _difference(workload, prepared, machine)
            runs: dict[str, list[Run]] = {name: [] for name in NAMES}
            for number in range(asked.rounds):
                # Each round begins with another one, so that none always follows the same neighbour.
                first = number % len(NAMES)
                for name in (*NAMES[first:], *NAMES[:first]):
                    runs[name].append(
                        run(name, workload, prepared, machine, asked.warmup_steps, asked.steps or workload.steps, 0)
                    )
            _show(workload, runs, results, ratios)
    conclude("training_throughput", machine, results, ratios)


def _difference(workload: Workload, prepared: tuple[Path, str], machine: Machine) -> float:
    ours, other = (run(name, workload, prepared, machine, 1, SAME_STEPS, 0).val_loss for name in NAMES[:2])
    apart = abs(ours - other)
    same = "same" if apart < SAME_LOSS else "NOT THE SAME"
    print(f"{workload.name}: after {SAME_STEPS} steps the hand-written loop's loss is {apart:.1e} from ours ({same})")
    return apart


def _show(workload: Workload, runs: dict[str, list[Run]], results: dict[str, Any], ratios: dict[str, float]) -> None:
    speeds = {name: [run.samples_per_second for run in done] for name, done in runs.items()}
    print(
        f"{workload.name}: {'contender':14} {'samples/s':>10}  {'from – to':>17}  {'loss on val':>11}  ours / it  goal"
    )
    for name, values in speeds.items():
        key = f"{workload.name}: ours / {name}"
        loss = statistics.median(run.val_loss for run in runs[name])
        results[f"{workload.name}: {name}"] = {
            "samples_per_second": round(statistics.median(values), 1),
            "val_loss": round(loss, 6),
        }
        line = f"     {name:14} {statistics.median(values):10.1f}  {min(values):8.1f} –{max(values):8.1f}  {loss:11.6f}"
        if name != "ours":
            ratios[key] = median_ratio(speeds["ours"], values)
            line += f"  {ratios[key]:9.3f}  {GOALS[workload.name].get(name, '')}"
        print(line, flush=True)


if __name__ == "__main__":
    main()

"""Samples per second of our engine beside a hand-written DDP loop, Lightning and transformers.Trainer.

Run by `make bench-training`. Prints a table, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from contest import COMPILED, NAMES, ContenderFailedError, Machine, Run, conclude, median_ratio, run
from workloads import WORKLOADS, Workload

#: With the same rows in the same order, the loss of the hand-written loop must equal ours after this many steps. Later,
#: a training amplifies rounding differences of sums.
SAME_LOSS, SAME_STEPS = 1e-4, 30
GOALS = {
    "ViT": {"hand-written": 0.97, "lightning": 1.10, "transformers": 1.10},
    "GPT": {"lightning": 1.0, "transformers": 1.0},
}


def main() -> None:
    """Runs all contenders in turns, round after round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, help="in all; 0 for 600 of the ViT, 160 of the GPT")
    parser.add_argument("--warmup-steps", type=int, default=20, help="of these, not counted")
    parser.add_argument("--models", default="ViT,GPT")
    parser.add_argument("--contenders", default="", help="beside ours, with commas between them; all if left out")
    asked = parser.parse_args()
    machine = Machine.of(asked.device)
    results: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for workload in WORKLOADS[asked.device]:
            if workload.name not in asked.models.split(","):
                continue
            prepared = workload.prepare(Path(folder))
            names: tuple[str, ...] = NAMES
            if asked.device == "cpu":
                results[f"{workload.name}: loss of ours - hand-written"] = _difference(workload, prepared, machine)
            else:
                names = (*NAMES, COMPILED)
            names = tuple(name for name in names if name in ("ours", *(asked.contenders or ",".join(names)).split(",")))
            runs: dict[str, list[Run]] = {name: [] for name in names}
            for number in range(asked.rounds):
                # Each round begins with another contender, so that none always follows the same one.
                first = number % len(names)
                for name in (*names[first:], *names[:first]):
                    steps = asked.steps or workload.steps
                    try:
                        runs[name].append(run(name, workload, prepared, machine, asked.warmup_steps, steps, 0))
                    except ContenderFailedError as error:
                        if name in ("ours", COMPILED):
                            raise
                        print(f"{workload.name}: {name} is left out, which failed: {str(error)[-300:]}", flush=True)
                        names = tuple(each for each in names if each != name)
            _show(workload, {name: done for name, done in runs.items() if name in names}, results, ratios)
    conclude("training_throughput", machine, results, ratios)


def _difference(workload: Workload, prepared: tuple[Path, str], machine: Machine) -> float:
    ours, other = (run(name, workload, prepared, machine, 1, SAME_STEPS, 0).val_loss for name in NAMES[:2])
    apart = abs(ours - other)
    same = "same" if apart < SAME_LOSS else "NOT THE SAME"
    print(f"{workload.name}: after {SAME_STEPS} steps the hand-written loop's loss is {apart:.1e} from ours ({same})")
    return apart


def _show(workload: Workload, runs: dict[str, list[Run]], results: dict[str, Any], ratios: dict[str, float]) -> None:
    figures = f"{'samples/s':>10}  {'from – to':>17}  {'CPU ms/step':>11}  {'loss on val':>11}"
    print(f"{workload.name}: {'contender':14} {figures}  ours / it  by CPU  goal")
    speeds, costs = _of_each(runs, "samples_per_second"), _of_each(runs, "cpu_seconds_per_step")
    for name, values in speeds.items():
        speed, cost = statistics.median(values), 1000 * statistics.median(costs[name])
        loss = statistics.median(run.val_loss for run in runs[name])
        results[f"{workload.name}: {name}"] = {
            "samples_per_second": round(speed, 1),
            "cpu_ms_per_step": round(cost, 3),
            "val_loss": round(loss, 6),
        }
        line = f"     {name:14} {speed:10.1f}  {min(values):8.1f} –{max(values):8.1f}  {cost:11.2f}  {loss:11.6f}"
        if name != "ours":
            key = f"{workload.name}: ours / {name}"
            ratios[key] = median_ratio(speeds["ours"], values)
            # Steps in the same CPU time, like samples/s: more is better for ours.
            ratios[f"{key}, by CPU time"] = by_cpu = median_ratio(costs[name], costs["ours"])
            line += f"  {ratios[key]:9.3f}  {by_cpu:6.3f}  {GOALS[workload.name].get(name, '')}"
        print(line, flush=True)


def _of_each(runs: dict[str, list[Run]], figure: str) -> dict[str, list[float]]:
    return {name: [getattr(run, figure) for run in done] for name, done in runs.items()}


if __name__ == "__main__":
    main()

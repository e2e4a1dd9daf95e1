"""Random runs over lists of machines, on the emulator: their outcomes, overlaps, and whether the cost is known.

A run has a random list of accelerators, kinds of provisioning and regions. There are machines and quota for some of
them; Spot machines are preempted during the run, answers of the service are lost, and the launcher dies at its
requests. The training is a stand-in of a second, with real checkpoints from which it continues on any number of GPUs.
Beside it the
same runs as a plain job on their first choice, without a list: how many of them get machines at all.

`python benchmarks/fallback_runs.py [--runs 200] [--seed 0]`; five minutes on a core.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fallback"))

from random_runs import Outcome, overlaps, quick, run, undisturbed, weather_of, what_is_wrong

from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began, outcomes, wrong = time.monotonic(), list[Outcome](), dict[int, list[str]]()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, quick():
        settings = EmulatorSettings(state=Path(folder) / "emulator")
        with running_emulator(settings) as emulator:
            os.environ.update(emulator.environment())
            emulator.state.replicas.grace_s = 5
            weights = undisturbed(Path(folder) / "undisturbed")
            for number in range(given.runs):
                weather = weather_of(number, given.seed)
                outcome = run(emulator, number, Path(folder), weather)
                outcomes.append(outcome)
                if problems := what_is_wrong(outcome, weights, weather):
                    wrong[number] = problems
                    print(f"run {number}: {'; '.join(problems)}", file=sys.stderr)
    print_results(outcomes, wrong, time.monotonic() - began)


def print_results(outcomes: list[Outcome], wrong: dict[int, list[str]], seconds: float) -> None:
    """Prints the table, and the line for programs."""
    states = Counter(outcome.state for outcome in outcomes)
    counted, billed = sum(each.counted_usd for each in outcomes), sum(each.billed_usd for each in outcomes)
    tries = [made for outcome in outcomes for made in outcome.tries]
    alone = sum(o.state == "weights" and all(t.choice == 0 for t in o.tries) for o in outcomes)
    results = {
        "runs": len(outcomes),
        "with the weights of an undisturbed run": states["weights"],
        "refused, with what was tried and why": states["refused"],
        "failed with the training's own error": states["failed"],
        "ended otherwise than promised": len(wrong),
        "jobs that overlapped in time": sum(overlaps(each.lines) for each in outcomes),
        "tries": len(tries),
        "of these without capacity": sum(made.state == "no capacity" for made in tries),
        "of these without quota": sum(made.state == "no quota" for made in tries),
        "launchers that died": sum(each.launchers - 1 for each in outcomes),
        "went on on another number of GPUs": sum(each.changed_gpus for each in outcomes),
        "weights by the first choice alone": alone,
        "longest time to the next request, s": round(max(each.gap_s for each in outcomes), 2),
        "cost by the records, USD": round(counted, 4),
        "cost by the emulator's bill, USD": round(billed, 4),
    }
    for name, value in results.items():
        print(f"{name:45}{value:>12}")
    print(f"{seconds:.0f} s")
    ratios = {"records / bill": round(counted / billed, 4), "list / first choice": round(states["weights"] / alone, 2)}
    print(json.dumps({"benchmark": "fallback", "machine": platform.node(), "results": results, "ratios": ratios}))


if __name__ == "__main__":
    main()

"""The share of a random search's work that it takes to reach its loss: searches for parameters on the digits.

For each seed, a random search trains 40 trials to their end, and a search with TPE and early stopping as many trials.
The measure is the number of rows that the second has trained on when it reaches the lowest loss on val of the first.
The median over the seeds should be at most 40 %. The default first rung of a search comes from the ranks of the random
trials after a part of their steps. Trials are forked, so that their imports do not take longer than their trainings
(`forked_trials.py`). Prints a table, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from contest import Machine, conclude
from forked_trials import ForkedTrials, import_once
from scipy.stats import spearmanr

import gpu_pipelines
import gpu_pipelines.tuning.search as searching
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.tuning.folder import JOURNAL
from gpu_pipelines.tuning.halving import FIRST_RUNG, REDUCTION, shares_of_rungs, with_rungs
from gpu_pipelines.tuning.result import TuningResult

GOAL_PERCENT = 40.0
#: Steps with the losses on val at each.
Curve = tuple[tuple[int, float], ...]
SPACE = Path(__file__).parents[2] / "examples" / "tuning" / "space.yaml"


def main() -> None:
    """Searches with both, for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--steps", type=int, default=270, help="optimizer steps of a whole training")
    parser.add_argument("--model", default="resnet-micro")
    parser.add_argument("--folder", type=Path, help="keeps the studies, which a second call continues")
    asked = parser.parse_args()
    import_once()
    searching.Processes = ForkedTrials  # type: ignore[assignment, misc]
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.folder or Path(scratch)
        dataset = folder / "dataset"
        if not (dataset / "dataset.json").exists():
            prepare_data(PrepareSettings(source="sample:digits"), dataset)
        curves: list[Curve] = []
        shares = [_share(asked, folder, dataset, seed, curves) for seed in range(asked.seeds)]
    for step, correlation in _ranks(curves):
        print(
            f"after {100 * step / asked.steps:.0f} % of the steps ranks correlate with the last ones by {correlation}"
        )
    median = statistics.median(shares)
    reached = sum(math.isfinite(share) for share in shares)
    print(f"{reached} of {len(shares)} reached it; median {median:.1f} % of the rows, goal {GOAL_PERCENT:.0f} %")
    shown = [round(share, 1) if math.isfinite(share) else None for share in shares]
    results = {"shares_percent": shown, "goal_percent": GOAL_PERCENT}
    conclude("tuning", Machine.of("cpu"), results, {"rows / rows of random search": round(median / 100, 3)})


def _share(asked: argparse.Namespace, folder: Path, dataset: Path, seed: int, curves: list[Curve]) -> float:
    """Percent of the rows of a random search after which the other one has its loss; infinite if it never has.

    The curves of the random search are added to those that are given.
    """
    common: dict[str, Any] = {
        "trials": asked.trials,
        "parallel": asked.parallel,
        "seed": seed,
        "progress": False,
        "model": asked.model,
        "max_steps": asked.steps,
    }
    at_random = gpu_pipelines.tune(dataset, folder / f"random-{seed}", SPACE, sampler="random", reduction=1, **common)
    curves += [trial.curve for trial in at_random.trials if trial.is_whole]
    study = folder / f"tpe-{seed}"
    found = gpu_pipelines.tune(dataset, study, SPACE, sampler="tpe", **common)
    rows = _rows_until(found, study, at_random.loss, asked.steps)
    share = 100 * rows / at_random.rows
    print(
        f"seed {seed}: random {at_random.loss:.4f} with {at_random.rows:,} rows; tpe {found.loss:.4f} with "
        f"{100 * found.rows / at_random.rows:.0f} % of them, as low as random after {share:.1f} %",
        flush=True,
    )
    return share


def _ranks(curves: list[Curve]) -> list[tuple[int, float]]:
    """By step, Spearman's correlation of the lowest losses until then with those of complete trainings."""
    lowest = [list(itertools.accumulate((loss for _, loss in curve), min)) for curve in curves]
    last = [losses[-1] for losses in lowest]
    steps = [step for step, _ in curves[0]]
    return [
        (step, round(float(spearmanr([losses[number] for losses in lowest], last).statistic), 2))
        for number, step in enumerate(steps)
    ]


def _rows_until(result: TuningResult, study: Path, loss: float, steps: int) -> float:
    """Rows that a study had trained on when it reached a loss; a part of a trial counts as a whole."""
    per_step = {trial.number: trial.rows / trial.step for trial in result.trials if trial.step}
    shares = shares_of_rungs(REDUCTION, FIRST_RUNG)
    _, rungs = with_rungs(TrainingSettings(max_steps=steps), 0, shares)
    done: dict[int, int] = {}
    rows = 0.0
    for line in map(json.loads, (study / JOURNAL).read_text(encoding="utf-8").splitlines()):
        if "rung" not in line:
            continue
        trial = line["trial"]
        rows += (rungs[line["rung"]] - done.get(trial, 0)) * per_step.get(trial, 0.0)
        done[trial] = rungs[line["rung"]]
        if line["loss"] is not None and line["loss"] <= loss:
            return rows
    return math.inf


if __name__ == "__main__":
    main()

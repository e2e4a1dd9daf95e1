"""The cost of a tracker in a training: the tiny ViT with and without MLflow, whose SQLite file another process writes.

Run by `make bench-training`. Prints a table, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contest import Machine, conclude, median_ratio
from workloads import WORKLOADS

from gpu_pipelines.artifacts.checkpoint import METRICS
from gpu_pipelines.training.settings import TrainingSettings

GOAL_PERCENT = 1.0
#: Not timed: processes start meanwhile, including that of the tracker.
WARM_UP = 0.2
_TRAIN = """
import json, sys
from gpu_pipelines.component_interface.step import own_process
from gpu_pipelines.tracking.tracked import Tracked, run_at
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model
settings, dataset, uri = json.loads(sys.argv[1])
with own_process(), Tracked("none", run_at(uri)) as tracked:
    train_model(TrainingSettings(**settings), dataset, uri, tracked=tracked)
"""
_VIT = "ViT"


def main() -> None:
    """Trains with and without a tracker, one directly after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600, help="of a training")
    asked = parser.parse_args()
    machine = Machine.of(asked.device)
    workload = next(each for each in WORKLOADS[asked.device] if each.name == _VIT)
    speeds: dict[str, list[float]] = {"none": [], "mlflow": []}
    seconds: dict[str, list[float]] = {"none": [], "mlflow": []}
    with tempfile.TemporaryDirectory() as folder:
        dataset, model = workload.prepare(Path(folder))
        settings = TrainingSettings(
            model=model,
            max_steps=asked.steps,
            global_batch_size=workload.batch,
            precision="fp32" if asked.device == "cpu" else "auto",
        )
        for number in range(asked.rounds):
            for tracking in ("none", "mlflow") if number % 2 else ("mlflow", "none"):
                place = Path(folder) / "runs" / f"{tracking}-{number}"
                began = time.monotonic()
                speeds[tracking].append(samples_per_second(settings, dataset, place, tracking))
                seconds[tracking].append(time.monotonic() - began)
    report(machine, speeds, seconds)


def samples_per_second(settings: TrainingSettings, dataset: Path, place: Path, tracking: str) -> float:
    """Trains, and returns the throughput between the times of two entries of the log.

    Args:
        settings: hyperparameters.
        dataset: the dataset to train on.
        place: gets the checkpoints; MLflow's file is kept beside the folder above it.
        tracking: the tracker.
    """
    place.mkdir(parents=True)
    told = {"GPU_PIPELINES_TRACKING": tracking, "GPU_PIPELINES_TRACKED_RUN": str(place)}
    arguments = [sys.executable, "-c", _TRAIN, json.dumps([asdict(settings), str(dataset), str(place)])]
    subprocess.run(arguments, env={**os.environ, **told}, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (place / METRICS).read_text(encoding="utf-8").splitlines()]
    entries = [entry for entry in lines if "loss" in entry and entry["step"] >= WARM_UP * settings.max_steps]
    steps = entries[-1]["step"] - entries[0]["step"]
    return float(steps * settings.global_batch_size / (entries[-1]["time"] - entries[0]["time"]))


def report(machine: Machine, speeds: dict[str, list[float]], seconds: dict[str, list[float]]) -> None:
    """Prints the table and the JSON."""
    ratio = median_ratio(speeds["mlflow"], speeds["none"])
    cost = round(100 * (1 - ratio), 2)
    results: dict[str, Any] = {"cost_percent": cost}
    print(f"{_VIT}: {'tracking':8} {'samples/s':>10} {'s in all':>9}")
    for tracking, values in speeds.items():
        took = statistics.median(seconds[tracking])
        results[tracking] = {"samples_per_second": round(statistics.median(values), 1), "seconds": round(took, 1)}
        print(f"     {tracking:8} {statistics.median(values):10,.1f} {took:9.1f}")
    print(f"     cost {cost} %, goal at most {GOAL_PERCENT}", flush=True)
    conclude("tracking_overhead", machine, results, {f"{_VIT}: mlflow / none": ratio})


if __name__ == "__main__":
    main()

"""The cost of evaluating all checkpoints, beside the forward passes alone and one process for each checkpoint.

Run with `python benchmarks/evaluation.py [--checkpoints N] [--rows N] [--processes N,N] [--rounds N]`. Contenders take
turns.

Ours is `evaluate_checkpoints` from the dataset and the checkpoints on disk to the exported model: hashes verified, all
checkpoints on val, the best one on test, intervals, examples. It is timed in a process that has imported torch and the
model's class; the processes that it starts, and their imports, are part of its time. Bare are the forward passes over
the same rows in as many processes, each after one model build: batches in memory, weights unchanged, predictions
discarded; timed from a common start after the imports to the end of the last process. Peer is a new process for each
checkpoint, as many at a time, which imports, builds the model, loads the weights, and predicts val.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_pipelines.processors import cores

MODEL, SIDE, CLASSES = "vit-micro", 32, 10
GOAL_BARE, GOAL_PEER = 1.25, 3.0
BATCH = 256


def make(folder: Path, checkpoints: int, rows: int) -> None:
    """Writes a dataset of noise in classes, and checkpoints of an untrained model, each slightly different."""
    import numpy as np
    import torch

    from gpu_pipelines.artifacts.checkpoint import checkpoint_path, mark_complete, write_configuration
    from gpu_pipelines.artifacts.dataset import Dataset, Feature
    from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
    from gpu_pipelines.tasks.building import build_model, load_recipe
    from gpu_pipelines.tasks.checkpoint_state import save_state, trained_weights

    generator = np.random.default_rng(0)
    features = {"image": Feature("uint8", (3, SIDE, SIDE)), "label": Feature("int32")}
    options: dict[str, Any] = {"preprocessing": {"image_mean": [0.5] * 3}, "labels": [str(n) for n in range(CLASSES)]}
    with DatasetWriter(
        folder / "data", task="image_classification", source="noise", features=features, **options
    ) as writer:
        for split, count in (("train", BATCH), ("val", rows), ("test", rows)):
            images = generator.integers(0, 256, (count, 3, SIDE, SIDE), dtype=np.uint8)
            labels = (np.arange(count) % CLASSES).astype(np.int32)
            writer.add_rows(split, ["noise"] * count, {"image": images, "label": labels}, count)
        writer.finish()
    dataset = Dataset(folder / "data")
    settings = {"model": MODEL, "seed": 0}
    model = build_model(load_recipe("", dataset.manifest.task).for_dataset(dataset), settings)
    (folder / "checkpoints").mkdir()
    write_configuration(folder / "checkpoints", {"task": dataset.manifest.task, "settings": settings, "devices": {}})
    known: dict[str, Any] = {"samples_seen": 0, "world_size": 1, "configuration_hash": ""}
    for number in range(1, checkpoints + 1):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        path = checkpoint_path(folder / "checkpoints", number)
        path.mkdir()
        save_state({"model": {name: value.clone() for name, value in trained_weights(model).items()}}, path)
        fingerprint = dataset.manifest.fingerprint
        mark_complete(path, step=number, epoch=float(number), dataset_fingerprint=fingerprint, **known)


def ours(folder: Path, processes: int) -> float:
    """Seconds of the evaluation, in this process."""
    from transformers import ViTForImageClassification  # noqa: F401

    from gpu_pipelines.evaluation.evaluate import evaluate_checkpoints
    from gpu_pipelines.evaluation.settings import EvaluationSettings

    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        settings = EvaluationSettings(registry=f"{scratch}/registry")
        best = Path(scratch) / "best"
        start = time.perf_counter()
        evaluate_checkpoints(settings, folder / "data", folder / "checkpoints", best, processes)
        return time.perf_counter() - start


def bare(folder: Path, processes: int, checkpoints: int) -> float:
    """Seconds of the forward passes, from a common start to the end of the last process."""
    command = [sys.executable, __file__, "--folder", str(folder), "--only", "forward", "--processes", str(processes)]
    command += ["--checkpoints", str(checkpoints)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([*command, "--number", str(n)], **pipes) for n in range(processes)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    start = time.perf_counter()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
    took = time.perf_counter() - start
    for process in started:
        process.communicate()
    return took


def forward(folder: Path, processes: int, number: int, checkpoints: int) -> None:
    """One process of `bare`: builds the model, then passes over its share of the rows of all checkpoints."""
    import torch
    from transformers import ViTForImageClassification  # noqa: F401

    from gpu_pipelines.artifacts.dataset import Dataset
    from gpu_pipelines.tasks.building import build_model, load_recipe

    torch.set_num_threads(max(1, cores() // processes))
    dataset = Dataset(folder / "data")
    recipe = load_recipe("", dataset.manifest.task).for_dataset(dataset)

    def batches(split: str) -> Iterator[dict[str, torch.Tensor]]:
        rows = dataset.split(split)
        for start in range(number * BATCH, len(rows), processes * BATCH):
            for columns in rows.columns(start, start + BATCH):
                yield recipe.batch({name: values.copy() for name, values in columns.items()}, torch.device("cpu"))

    val, test = list(batches("val")), list(batches("test"))
    print("ready", flush=True)
    sys.stdin.readline()
    model = build_model(recipe, {"model": MODEL}).eval()
    with torch.inference_mode():
        for batch in [*val * checkpoints, *test]:
            recipe.predict(model, batch)
    print("done", flush=True)


def peer(folder: Path, processes: int) -> float:
    """Seconds with one process for each checkpoint, as many at a time as `processes`."""
    waiting = sorted((folder / "checkpoints").glob("step-*"))
    command = [sys.executable, __file__, "--folder", str(folder), "--processes", str(processes), "--only"]
    running: list[subprocess.Popen[bytes]] = []
    start = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < processes:
            running.append(subprocess.Popen([*command, str(waiting.pop())]))
        if running[0].wait():
            raise RuntimeError("a process of one checkpoint failed")
        running.pop(0)
    return time.perf_counter() - start


def one_checkpoint(folder: Path, checkpoint: Path, processes: int) -> None:
    """One process of `peer`."""
    import torch

    from gpu_pipelines.evaluation.models.loading import ModelSource
    from gpu_pipelines.evaluation.scorers.runner import Runner, RunnerSettings

    torch.set_num_threads(max(1, cores() // processes))
    settings = RunnerSettings(folder / "data", {"model": MODEL, "seed": 0}, "", BATCH)
    rows = json.loads((folder / "rows.json").read_text())
    Runner(settings, "cpu").predict(ModelSource("checkpoint", checkpoint, checkpoint.name), "val", 0, rows)


def measure(folder: Path, given: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each contender, round by round."""
    found: dict[str, list[float]] = {}
    for _ in range(given.rounds):
        for count in [int(word) for word in given.processes.split(",")]:
            own = [sys.executable, __file__, "--folder", str(folder), "--only", "ours", "--processes", str(count)]
            done = subprocess.run(own, check=True, stdout=subprocess.PIPE, text=True)
            found.setdefault(f"ours, {count} processes", []).append(float(done.stdout.splitlines()[-1]))
            found.setdefault(f"bare, {count} processes", []).append(bare(folder, count, given.checkpoints))
            found.setdefault(f"one each, {count} at a time", []).append(peer(folder, count))
    return found


def report(found: dict[str, list[float]], given: argparse.Namespace) -> None:
    """Prints seconds and the medians of the ratios of a round, then everything as one JSON object."""
    print(f"{given.checkpoints} checkpoints of {MODEL}, {given.rows:,} rows of {SIDE} × {SIDE} pixels")
    for name, times in found.items():
        print(f"{name:28} {statistics.median(times):8.2f} s")
    ratios: dict[str, float] = {}
    for count in given.processes.split(","):
        own, forward_alone = found[f"ours, {count} processes"], found[f"bare, {count} processes"]
        each = found[f"one each, {count} at a time"]
        above = statistics.median(a / b for a, b in zip(own, forward_alone, strict=True))
        below = statistics.median(b / a for a, b in zip(own, each, strict=True))
        ratios |= {f"ours / bare, {count} processes": above, f"one each / ours, {count} processes": below}
        missed = "" if above <= GOAL_BARE else ": missed"
        print(f"ours / bare, {count} processes: {above:.3f} (goal at most {GOAL_BARE}{missed})")
        missed = "" if below >= GOAL_PEER else ": missed"
        print(f"one each / ours, {count} processes: {below:.2f} (goal at least {GOAL_PEER}{missed})")
    machine = {
        "cores": cores(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    results = {"seconds": found, "checkpoints": given.checkpoints, "rows": given.rows}
    print(json.dumps({"benchmark": "evaluation", "machine": machine, "results": results, "ratios": ratios}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--rows", type=int, default=4096, help="of val, and of test")
    parser.add_argument("--processes", default="1,2", help="numbers of processes, one after the other")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only == "ours":
        print(ours(given.folder, int(given.processes)))
    elif given.only == "forward":
        forward(given.folder, int(given.processes), given.number, given.checkpoints)
    elif given.only:
        one_checkpoint(given.folder, Path(given.only), int(given.processes))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            make(Path(scratch), given.checkpoints, given.rows)
            (Path(scratch) / "rows.json").write_text(str(given.rows))
            report(measure(Path(scratch), given), given)


if __name__ == "__main__":
    main()

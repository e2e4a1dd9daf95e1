"""The speed of reading prepared rows, shuffled, and its share of a training step.

Run with `python benchmarks/data_prep/reading.py [--rounds N] [--batches N] [--steps N]`. Ours is the reader of
`train_model`. Beside it: the same rows, fixed-size lists in a directory that `datasets` wrote with save_to_disk,
through `torch.utils.data.DataLoader` with shuffle, without worker processes and with two. All end with the same tensors
of the recipe. Contenders take turns, each in its own process. First, batches are read and discarded; then the model is
trained on them: a ViT on images of 3 × 32 × 32 and a small GPT on packed rows of 128 tokens, or larger ones with
`--device cuda`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from machine import machine

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.tasks.building import build_model, load_recipe
from gpu_pipelines.tasks.recipe import Batch, Recipe
from gpu_pipelines.training.rows.batches import TrainingBatches
from gpu_pipelines.training.settings import TrainingSettings

sys.path.append(str(Path(__file__).parents[1] / "training"))
from workloads import WORKLOADS, Workload

CONTENDERS = {"ours": None, "DataLoader": 0, "DataLoader, 2 workers": 2}
WARM_UP = 5


def our_batches(recipe: Recipe, dataset: Dataset, settings: TrainingSettings, device: torch.device) -> Iterator[Batch]:
    """Endless batches, read as by `train_model`."""
    batches = TrainingBatches(recipe, dataset.split("train"), settings, device)
    step = 0
    while True:
        ((batch, _),) = batches.of_step(step)[0]
        yield batch
        step += 1


def their_batches(recipe: Recipe, folder: Path, rows: int, device: torch.device, workers: int) -> Iterator[Batch]:
    """Endless batches of a DataLoader over the output of `copy_for_datasets`."""
    import datasets

    table = datasets.load_from_disk(str(folder)).with_format("torch")
    shapes = json.loads((folder / "shapes.json").read_text(encoding="utf-8"))
    loader: Any = torch.utils.data.DataLoader(
        table,
        batch_size=rows,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=device.type == "cuda",
    )
    while True:
        for columns in loader:
            arrays = {name: values.numpy().reshape(rows, *shapes[name]) for name, values in columns.items()}
            yield recipe.batch(arrays, device)


def copy_for_datasets(dataset: Dataset, folder: Path) -> None:
    """Writes the training rows in the form of `datasets`: fixed-size lists, with the same element types."""
    import datasets

    features = {
        name: datasets.List(datasets.Value(feature.dtype), length=int(torch.Size(feature.shape).numel()))
        if feature.shape
        else datasets.Value(feature.dtype)
        for name, feature in dataset.manifest.features.items()
    }
    train = dataset.split("train")

    def rows() -> Iterator[dict[str, Any]]:
        for columns in train.columns(0, len(train)):
            for number in range(len(next(iter(columns.values())))):
                yield {
                    name: values[number].reshape(-1) if values.ndim > 1 else values[number].item()
                    for name, values in columns.items()
                }

    with tempfile.TemporaryDirectory() as cache:
        made = datasets.Dataset.from_generator(rows, features=datasets.Features(features), cache_dir=cache)
        made.save_to_disk(str(folder))
    shapes = {name: feature.shape for name, feature in dataset.manifest.features.items()}
    (folder / "shapes.json").write_text(json.dumps(shapes), encoding="utf-8")


def read_alone(batches: Iterator[Batch], number: int, device: torch.device) -> float:
    """Seconds of a batch."""
    for _ in range(WARM_UP):
        next(batches)
    start = time.perf_counter()
    for _ in range(number):
        next(batches)
    _wait_for(device)
    return (time.perf_counter() - start) / number


def share_of_step(batches: Iterator[Batch], recipe: Recipe, model: str, steps: int, device: torch.device) -> float:
    """Share of the time of training steps that is spent waiting for the batch, between 0 and 1."""
    torch.manual_seed(0)
    net = build_model(recipe, {"model": model, "lora_rank": 0, "lora_alpha": 1.0}).to(device).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    reading = passed = 0.0
    for step in range(WARM_UP + steps):
        _wait_for(device)
        start = time.perf_counter()
        batch = next(batches)
        there = time.perf_counter()
        recipe.loss(net, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        _wait_for(device)
        if step >= WARM_UP:
            reading += there - start
            passed += time.perf_counter() - start
    return reading / passed


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def run_one(name: str, workload: Workload, folder: Path, given: argparse.Namespace) -> None:
    """Runs one contender and prints rows per second and the share of a step."""
    device = torch.device(given.device)
    dataset, model = Dataset(folder / f"{workload.name} data"), given.model
    settings = workload.settings(model, 1, 0)
    recipe = load_recipe(settings.recipe, workload.task).for_dataset(dataset)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    workers = CONTENDERS[name]
    if workers is None:
        batches = our_batches(recipe, dataset, settings, device)
    else:
        batches = their_batches(recipe, folder / f"{workload.name} copy", workload.batch, device, workers)
    rate = workload.batch / read_alone(batches, given.batches, device)
    print(json.dumps([rate, share_of_step(batches, recipe, model, given.steps, device)]), flush=True)
    dist.destroy_process_group()


def measure(folder: Path, given: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Rows per second and share of a step of each contender for each workload, round by round."""
    found: dict[str, list[tuple[float, float]]] = {}
    for workload in WORKLOADS[given.device]:
        dataset, model = workload.prepare(folder)
        copy_for_datasets(Dataset(dataset), folder / f"{workload.name} copy")
        for number in range(given.rounds):
            for name in list(CONTENDERS)[:: -1 if number % 2 else 1]:
                command = [sys.executable, __file__, "--only", name, workload.name, "--folder", str(folder)]
                command += ["--model", model, "--device", given.device]
                command += ["--batches", str(given.batches), "--steps", str(given.steps)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                rate, share = json.loads(done.stdout.splitlines()[-1])
                found.setdefault(f"{workload.name}, {name}", []).append((rate, share))
    return found


def report(found: dict[str, list[tuple[float, float]]], device: str) -> None:
    """Prints the medians, then everything as one JSON object."""
    results, ratios = {}, {}
    for name, rounds in found.items():
        rates, shares = zip(*rounds, strict=True)
        rate, share = statistics.median(rates), statistics.median(shares)
        print(f"{name:28} {rate:12,.0f} rows/s {share:8.2%} of a step")
        results[name] = {"rows_per_second": rates, "share_of_step": shares}
        workload, contender = name.split(", ", 1)
        if contender != "ours":
            ours = found[f"{workload}, ours"]
            ratios[f"{workload}: ours / {contender}"] = ratio = statistics.median(
                own / theirs for (own, _), (theirs, _) in zip(ours, rounds, strict=True)
            )
            print(f"{'':28} ours is {ratio:.2f} × as fast")
    what = {"benchmark": "data_prep_reading", "machine": {**machine(), "device": device}}
    print(json.dumps({**what, "results": results, "ratios": ratios}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", choices=list(WORKLOADS), default="cpu")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        name, of_workload = given.only
        (workload,) = (workload for workload in WORKLOADS[given.device] if workload.name == of_workload)
        run_one(name, workload, given.folder, given)
        return
    with tempfile.TemporaryDirectory() as scratch:
        report(measure(Path(scratch), given), given.device)


if __name__ == "__main__":
    main()

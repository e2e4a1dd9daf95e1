"""The disk and memory of a training on ten million images that stay compressed in a bucket.

Run as `python benchmarks/data_prep/streamed_images.py [--images N] [--steps N]`; needs 10 GB of disk for the bucket.
Prints its results, and as its last line one JSON object. Exits with 1 if the training took more disk than its cache may
have.

The bucket is the emulator's, in a separate process. Images are JPEGs of 32 × 32 pixels; some thousands of different
ones stand for all. The model is linear, so that most of the time is spent on reading.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine
from PIL import Image

from gpu_pipelines.artifacts.dataset import Feature
from gpu_pipelines.artifacts.dataset_writer import DatasetWriter
from gpu_pipelines.artifacts.image_features import ImageGeometry
from gpu_pipelines.emulator.start import EmulatorSettings, running_emulator
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

SIDE, CLASSES, VAL_ROWS, AT_ONCE, BATCH = 32, 10, 256, 8192, 1024
#: Other files that a training process may keep for a while: the dataset's own, the log, and the linear model.
_FOR_OTHER_FILES = 100_000_000


def main() -> None:
    """Writes the dataset, trains on it, and samples disk and memory meanwhile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000_000)
    parser.add_argument("--different", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=0, help=f"of {BATCH} images; 0 for an epoch")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _bucket(Path(folder)) as bucket:
        began = time.perf_counter()
        write_dataset(bucket / "images", asked.images, asked.different)
        size = sum(path.stat().st_size for path in bucket.rglob("*.arrow"))
        seconds = time.perf_counter() - began
        print(f"{asked.images:,} images, {size / 1e9:.2f} GB, written in {seconds:.0f} s", flush=True)
        steps = asked.steps or asked.images // BATCH
        found = _trained(Path(folder), f"gs://{bucket.name}/images", size / 10, steps)
        found["needed_gb"] = size * steps * BATCH / asked.images / 1e9
    pixels = asked.images * 3 * SIDE**2
    print(
        f"cache {found['cache_gb']:.2f} GB, a tenth of the dataset, whose pixels would take {pixels / 1e9:.1f} GB: "
        f"at most {found['disk_gb']:.2f} GB of disk, {found['memory_gb']:.2f} GB of memory for each process; "
        f"{found['images_per_second']:,} images/s, of {found['seconds']:,.0f} s {found['stalled_seconds']:.1f} waited; "
        f"{found['fetched_gb']:.2f} GB fetched after the first line, for images of {found['needed_gb']:.2f} GB"
    )
    results = {"images": asked.images, "steps": steps, **found}
    ratios = {
        "disk / cache": round(found["disk_gb"] / found["cache_gb"], 3),
        "fetched / needed": round(found["fetched_gb"] / found["needed_gb"], 3),
    }
    print(json.dumps({"benchmark": "streamed_images", "machine": machine(), "results": results, "ratios": ratios}))
    if found["disk_gb"] > found["cache_gb"] + _FOR_OTHER_FILES / 1e9:
        sys.exit("It took more disk than its cache may have.")


def write_dataset(directory: Path, images: int, different: int) -> None:
    """Writes a dataset of JPEGs, each repeated many times."""
    directory.mkdir(parents=True)
    generator = np.random.default_rng(0)
    files = [_photo(generator, number % CLASSES) for number in range(different)]
    geometry = ImageGeometry(SIDE, "RGB")
    features = {"image": Feature("uint8", geometry.shape, asdict(geometry)), "label": Feature("int32")}
    with DatasetWriter(
        directory,
        task="image_classification",
        source="synthetic",
        features=features,
        labels=[str(number) for number in range(CLASSES)],
        preprocessing=geometry.preprocessing(),
    ) as writer:
        for split, rows in (("train", images), ("val", VAL_ROWS), ("test", VAL_ROWS)):
            for start in range(0, rows, AT_ONCE):
                numbers = np.arange(start, min(start + AT_ONCE, rows)) % different
                columns = {
                    "image": [files[number] for number in numbers],
                    "label": (numbers % CLASSES).astype(np.int32),
                }
                writer.add_rows(split, [f"{start + n}.jpg" for n in range(len(numbers))], columns, len(numbers))
        writer.finish()


def _photo(generator: np.random.Generator, label: int) -> bytes:
    coarse = Image.fromarray((generator.integers(0, 128, (6, 6, 3)) + 12 * label).astype(np.uint8))
    file = io.BytesIO()
    coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
    return file.getvalue()


@contextmanager
def _bucket(folder: Path) -> Iterator[Path]:
    """The folder with the files of a bucket, which Google's clients find from now on."""
    processes = multiprocessing.get_context("spawn")
    given, ended = processes.Pipe()
    process = processes.Process(target=_emulate, args=(folder / "emulator", ended))
    process.start()
    found = given.recv()
    os.environ.update(found["environment"])
    try:
        yield Path(found["bucket"])
    finally:
        given.send("end")
        process.join()


def _emulate(state: Path, told: Any) -> None:
    with running_emulator(EmulatorSettings(state=state)) as api:
        (bucket,) = (api.folder / "gcs").iterdir()
        told.send({"environment": api.environment(), "bucket": str(bucket)})
        told.recv()


def _trained(folder: Path, dataset: str, cache: float, steps: int) -> dict[str, Any]:
    """Trains with a separate disk for temporary files."""
    disk = folder / "disk"
    disk.mkdir()
    os.environ |= {"TMPDIR": str(disk), "PYTHONPATH": str(Path(__file__).parent)}
    tempfile.tempdir = None
    settings = TrainingSettings(
        recipe="linear_images:LinearImages",
        max_steps=steps,
        global_batch_size=BATCH,
        learning_rate=1e-3,
        streaming="on",
        cache_gb=cache / 1e9,
    )
    ended, most = threading.Event(), [0]
    looking = threading.Thread(target=_look, args=(disk, ended, most))
    looking.start()
    began = time.perf_counter()
    try:
        summary = train_model(settings, dataset, str(folder / "checkpoints"))
    finally:
        ended.set()
        looking.join()
    assert summary is not None
    seconds = time.perf_counter() - began
    return {
        "cache_gb": cache / 1e9,
        "disk_gb": most[0] / 1e9,
        "memory_gb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6,
        "images_per_second": round(steps * BATCH / seconds),
        "seconds": round(seconds, 1),
        "stalled_seconds": summary.figures()["stalled_seconds"],
        "fetched_gb": _fetched(summary.metrics) / 1e9,
    }


def _fetched(metrics: list[dict[str, Any]]) -> float:
    """Bytes that all processes have fetched after the first line of the log."""
    told = [(entry["time"], entry["fetched_mb_per_second"]) for entry in metrics if "fetched_mb_per_second" in entry]
    return sum(1e6 * rate * (now - before) for (before, _), (now, rate) in pairwise(told))


def _look(disk: Path, ended: threading.Event, most: list[int]) -> None:
    """Records the largest size of all files together, ten times a second."""
    while not ended.wait(0.1):
        used = 0
        for path in disk.rglob("*"):
            try:
                used += 512 * path.stat().st_blocks
            except FileNotFoundError:
                continue
        most[0] = max(most[0], used)


if __name__ == "__main__":
    main()

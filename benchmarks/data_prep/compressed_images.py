"""Bytes and batches per second of a dataset with pixels, beside one with the files of its images.

Run as `python benchmarks/data_prep/compressed_images.py`. Prints a table, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import machine
from PIL import Image

from gpu_pipelines.artifacts.dataset import Dataset, Split
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings

SIDE, BATCH = 224, 64


def main() -> None:
    """Prepares the same photos in both forms, and reads batches of both in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = _photos(Path(folder) / "source", asked.images)
        splits = {}
        for form in ("pixels", "compressed"):
            settings = PrepareSettings(source=str(source), image_size=SIDE, color_mode="RGB", image_storage=form)
            prepare_data(settings, Path(folder) / form)
            splits[form] = Dataset(Path(folder) / form).split("train")
        sizes = {form: _bytes_of(Path(folder) / form) / asked.images for form in splits}
        rates: dict[str, list[float]] = {form: [] for form in splits}
        for number in range(asked.rounds):
            for form, split in splits.items():
                rates[form].append(_images_per_second(split, number))
    found = {
        form: {"bytes_per_image": round(sizes[form]), "images_per_second": round(statistics.median(rates[form]))}
        for form in splits
    }
    print(f"{'kept':12}{'bytes per image':>18}{'images per second':>20}")
    for form, figures in found.items():
        print(f"{form:12}{figures['bytes_per_image']:18,}{figures['images_per_second']:20,}")
    ratios = {
        f"compressed / pixels, {name}": round(found["compressed"][name] / found["pixels"][name], 4)
        for name in found["pixels"]
    }
    results = {"side": SIDE, "batch": BATCH, **found}
    print(json.dumps({"benchmark": "compressed_images", "machine": machine(), "results": results, "ratios": ratios}))


def _photos(folder: Path, number: int) -> Path:
    """Smooth pictures with some noise, as JPEG of 320 × 240: about as many bytes as photos of that size."""
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    for each in range(number):
        coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3)).astype(np.uint8))
        picture = np.asarray(coarse.resize((320, 240), Image.Resampling.BICUBIC)).astype(np.float64)
        noisy = np.clip(picture + generator.normal(0, 6, picture.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / "ab"[each % 2] / f"{each:05d}.jpg", quality=85)
    return folder


def _bytes_of(dataset: Path) -> int:
    return sum(path.stat().st_size for path in dataset.rglob("*.arrow"))


def _images_per_second(split: Split, seed: int) -> float:
    rows = np.random.default_rng(seed).permutation(len(split))
    began = time.perf_counter()
    for start in range(0, len(rows), BATCH):
        split.take(rows[start : start + BATCH])
    return len(rows) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()

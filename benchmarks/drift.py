"""How often the drift check raises an alarm without drift, and how often it finds a small drift.

Each week draws new rows from the population of the training data, and runs the whole check, like the component: source,
preparation, model, embedding, every test, and the correction for their number. The model is one champion with one
profile, as it would be over years, so that a profile that is off by chance counts in every week.

Prints a table, and as its last line one JSON object. Ends with status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from gpu_pipelines.artifacts.dataset import Dataset
from gpu_pipelines.artifacts.evaluation import Evaluation
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.drift.check import DriftCheck, check_for_drift
from gpu_pipelines.drift.settings import DriftSettings
from gpu_pipelines.prediction.model import model_in
from gpu_pipelines.profiles.making import keep_profile
from gpu_pipelines.tasks.tasks import task_named

#: The most alarms without drift, and the fewest shifts to find, as shares.
MOST_ALARMS, LEAST_FOUND = 0.05, 0.95
SHIFT = 0.2
_WORDS = [f"{a}{b}" for a in ("ba", "ko", "mi", "ru", "te", "sa", "lo", "ne") for b in ("n", "ra", "sti", "lum", "po")]
_SIDE = 12


@dataclass(frozen=True)
class Population:
    """A population of rows.

    Attributes:
        task: the task of the rows.
        model: the architecture of the champion.
        write: writes this many rows to a folder and returns the source; the last argument is the shift of one property,
            in its standard deviations.
        shifted: the property that `write` shifts.
    """

    task: str
    model: str
    write: Callable[[Path, np.random.Generator, int, float], Path]
    shifted: str


def write_numbers(folder: Path, random: np.random.Generator, rows: int, shift: float) -> Path:
    """Ten columns: normal, correlated, skewed, heavy-tailed, rounded, with few codes; and one to learn."""
    base = random.normal(size=(rows, 6))
    columns = {
        "normal": base[:, 0] + shift,
        "related": 0.8 * base[:, 1] + 0.6 * base[:, 2],
        "related too": 0.8 * base[:, 1] + 0.6 * base[:, 3],
        "skewed": np.exp(base[:, 4]),
        "heavy": random.standard_t(3, rows),
        "rounded": np.round(base[:, 5], 1),
        "even": random.uniform(size=rows),
        "mostly zero": np.where(random.uniform(size=rows) < 0.7, 0, random.exponential(size=rows)),
        "code": random.choice(4, rows, p=[0.5, 0.3, 0.15, 0.05]),
        "count": random.poisson(8, rows),
    }
    target = base[:, 0] + base[:, 1] + random.normal(size=rows)
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*columns, "label"])
        table.writerows(zip(*(values.tolist() for values in columns.values()), target.tolist(), strict=True))
    return path


def write_images(folder: Path, random: np.random.Generator, rows: int, shift: float) -> Path:
    """Spots on a background, whose brightness varies from image to image by 12 grey values."""
    place = np.mgrid[:_SIDE, :_SIDE]
    path = folder / "rows.jsonl"
    with path.open("w") as file:
        for _ in range(rows):
            label = int(random.integers(3))
            middle = random.uniform(3, 9, (2, 1, 1))
            spot = np.exp(-((place - middle) ** 2).sum(axis=0) / random.uniform(2, 6 + label))
            colour = random.uniform(20, 60, (3, 1, 1))
            ground = 90 + 12 * (random.normal() + shift)
            pixels = np.clip(ground + colour * spot + random.normal(0, 6, (3, _SIDE, _SIDE)), 0, 255)
            encoded = io.BytesIO()
            Image.fromarray(pixels.astype(np.uint8).transpose(1, 2, 0)).save(encoded, "PNG")
            name = f"{random.integers(1 << 62)}.png"
            (folder / name).write_bytes(encoded.getvalue())
            file.write(json.dumps({"image": name, "label": "abc"[label]}) + "\n")
    return path


def write_texts(folder: Path, random: np.random.Generator, rows: int, shift: float) -> Path:
    """Texts of 5 to 40 words, some words much more frequent than others; their lengths vary by 6 words."""
    weights = 1 / np.arange(1, len(_WORDS) + 1)
    path = folder / "rows.jsonl"
    with path.open("w") as file:
        for _ in range(rows):
            words = int(np.clip(round(20 + 6 * (random.normal() + shift)), 5, 40))
            text = " ".join(random.choice(_WORDS, words, p=weights / weights.sum()))
            file.write(json.dumps({"text": text, "label": "yes" if "ban" in text else "no"}) + "\n")
    return path


POPULATIONS = {
    "numbers": Population("regression", "mlp-small", write_numbers, "normal"),
    "images": Population("image_classification", "convnext-micro", write_images, "brightness"),
    "texts": Population("text_classification", "bert-micro", write_texts, "length in tokens"),
}


class Champion:
    """A model with its profile. It is not trained: it only matters that its answers depend on its inputs.

    Args:
        population: the population of its training data.
        folder: an empty folder.
        rows: rows of the training data.
        seed: the seed of the training data.
    """

    def __init__(self, population: Population, folder: Path, rows: int, seed: int = 0) -> None:
        self._population, self._folder = population, folder
        (folder / "rows").mkdir(parents=True)
        source = population.write(folder / "rows", np.random.default_rng(seed), rows, 0.0)
        with contextlib.redirect_stdout(io.StringIO()):
            given: Any = {"image_size": _SIDE} if population.task == "image_classification" else {}
            settings = PrepareSettings(
                task=population.task, source=str(source), val_fraction=0.15, test_fraction=0.15, **given
            )
            prepare_data(settings, folder / "dataset")
        self.dataset = Dataset(folder / "dataset")
        torch.manual_seed(seed)
        recipe = task_named(population.task).load_recipe().for_dataset(self.dataset)
        model = recipe.build_model(population.model).eval()
        self.model = folder / "model"
        self.model.mkdir()
        recipe.export(model, self.model)
        _evaluation(population, self.dataset).save(self.model)
        keep_profile(self.model, self.dataset)

    def check(self, seed: int, rows: int, shift: float = 0.0, **settings: Any) -> DriftCheck:
        """Draws the rows of a week and checks them."""
        with tempfile.TemporaryDirectory(dir=self._folder) as week:
            source = self._population.write(Path(week), np.random.default_rng([1, seed]), rows, shift)
            asked = DriftSettings(source=str(source), **settings)
            return check_for_drift(asked, model_in(self.model, str(self.model)))


def _evaluation(population: Population, dataset: Dataset) -> Evaluation:
    return Evaluation(
        model_name="champion",
        task=population.task,
        labels=dataset.manifest.labels,
        dataset_fingerprint=dataset.manifest.fingerprint,
        configuration={"settings": {"model": population.model}, "devices": {}},
        select_by="loss",
        checkpoints=[],
        best="step-00000001",
        test={"rows": 0, "metrics": {}},
        champion=None,
        gates=[],
        passed=True,
        mistakes=[],
    )


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark; returns the exit status, 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=POPULATIONS, default=list(POPULATIONS))
    parser.add_argument("--weeks", type=int, default=200)
    parser.add_argument("--shifts", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1000, help="of a week")
    parser.add_argument("--reference", type=int, default=6000, help="rows of the training data")
    parser.add_argument("--champion", type=int, default=0, help="seed of the training data")
    asked = parser.parse_args(arguments)
    print("| rows | tests | weeks without drift | alarms | shifted | shifts | found | seconds a check |")
    print("|---|---|---|---|---|---|---|---|")
    results, ratios = {}, {}
    for kind in asked.kinds:
        population = POPULATIONS[kind]
        with tempfile.TemporaryDirectory(prefix="drift-") as scratch:
            champion = Champion(population, Path(scratch) / "champion", asked.reference, asked.champion)
            started = time.monotonic()
            weeks = [champion.check(week, asked.rows) for week in range(asked.weeks)]
            seconds = (time.monotonic() - started) / max(asked.weeks, 1)
            shifted = [champion.check(100_000 + n, asked.rows, SHIFT) for n in range(asked.shifts)]
        alarms = sum(week.has_drift for week in weeks)
        found = sum(any(each.name == population.shifted for each in week.drifted) for week in shifted)
        tests = len((weeks or shifted)[0].findings)
        print(
            f"| {kind} | {tests} | {asked.weeks} | {alarms} | {population.shifted} by {SHIFT} | {asked.shifts} | "
            f"{found} | {seconds:.2f} |",
            flush=True,
        )
        named = Counter(each.name for week in weeks for each in week.drifted)
        if named:
            print(f"  alarms by what was named: {dict(named)}", file=sys.stderr)
        counted = {"tests": tests, "weeks": asked.weeks, "alarms": alarms, "shifts": asked.shifts, "found": found}
        results[kind] = {**counted, "seconds": round(seconds, 3)}
        ratios[f"{kind}: alarms / weeks"] = _share(alarms, asked.weeks)
        ratios[f"{kind}: found / shifts"] = _share(found, asked.shifts)
    print(json.dumps({"benchmark": "drift", "machine": platform.machine(), "results": results, "ratios": ratios}))
    return 0 if all(map(_is_reached, results.values())) else 1


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _is_reached(counted: Mapping[str, Any]) -> bool:
    """Whether the goals for one kind of rows are met."""
    few = counted["alarms"] <= MOST_ALARMS * counted["weeks"]
    return bool(few and counted["found"] >= LEAST_FOUND * counted["shifts"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

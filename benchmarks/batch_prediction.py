"""The speed of batch prediction from files to files, beside the bare forward passes and transformers' pipeline.

Run with `python benchmarks/batch_prediction.py [--rounds N] [--images N] [--texts N] [--pixels N] [--tokens N]
[--model-of-images NAME] [--model-of-texts NAME]`. Contenders take turns; ratios are medians of the ratios of a round.

Ours is `predict_batch`, from JPEG files (500 × 375 pixels) or JSON lines on disk to JSON lines on disk: the model is
loaded and its files verified; rows are read, decoded or encoded, predicted, written, hashed and joined. Bare are only
the forward passes over the same rows, decoded and encoded before, in batches of the same size in memory, with texts
sorted by length; predictions are copied from the device and discarded. Peer is transformers' own pipeline for text
classification with the same model and batch size, with texts in memory and nothing written.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.processors import cores

CLASSES = 10
GOAL = 0.85
_WORDS = ["the", "a", "of", "and", "to", "in", "is", "it", "was", "for", "on", "that", "with", "as", "by", "at", "from"]


def write_images(folder: Path, count: int) -> Path:
    """Noisy JPEG files of 500 × 375 pixels."""
    from PIL import Image

    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(count):
        small = generator.integers(0, 256, (25, 33, 3), dtype=np.uint8)
        Image.fromarray(small).resize((500, 375), Image.Resampling.BICUBIC).save(
            folder / f"{number:06d}.jpg", quality=90
        )
    return folder


def write_texts(file: Path, count: int, longest: int) -> Path:
    """Texts in words as JSON lines, from a tenth of the longest length up to it."""
    generator = np.random.default_rng(0)
    texts = (" ".join(generator.choice(_WORDS, generator.integers(longest // 10, longest - 2))) for _ in range(count))
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return file


def export_images(name: str, directory: Path, pixels: int) -> Path:
    """Writes an image classifier with random weights."""
    import torch

    from gpu_pipelines.artifacts.image_features import ImageGeometry
    from gpu_pipelines.tasks.image_classification.recipe import ImageClassification

    torch.manual_seed(0)
    directory.mkdir()
    geometry = ImageGeometry(pixels, "RGB")
    labels = [f"class {number}" for number in range(CLASSES)]
    recipe = ImageClassification(labels, geometry.preprocessing(), geometry.shape)
    recipe.export(recipe.build_model(name), directory)
    return directory


def export_texts(name: str, directory: Path, longest: int) -> Path:
    """Writes a text classifier with random weights."""
    import torch

    from gpu_pipelines.tasks.text_classification.recipe import TextClassification
    from gpu_pipelines.tasks.text_encoding import TextEncoder
    from gpu_pipelines.tasks.text_tokenizer import TextTokenizer

    torch.manual_seed(0)
    made = directory.with_name("tokenizer")
    TextEncoder.train([" ".join(_WORDS)] * 50, 0, ends=True).save(made, longest)
    directory.mkdir()
    recipe = TextClassification([f"class {number}" for number in range(CLASSES)], TextTokenizer.read(made), longest)
    recipe.export(recipe.build_model(name), directory)
    return directory


def bare(model: Path, values: list[Any], at_once: int) -> Callable[[], float]:
    """Returns a function that times the forward passes over batches in memory, seconds."""
    import torch

    from gpu_pipelines.serving.predictors import gpus_here, load_predictor
    from gpu_pipelines.serving.settings import ServerSettings

    predictor: Any = load_predictor(model, ServerSettings(), cores())
    ordered = sorted(values, key=lambda value: len(value) if isinstance(value, str) else 0)
    rows = predictor.rows_of(ordered, predictor.checked({}))
    columns = [predictor.columns(rows[start : start + at_once]) for start in range(0, len(rows), at_once)]

    def run() -> float:
        began = time.perf_counter()
        with torch.inference_mode():
            for batch in columns:
                predictor._recipe.predict(predictor._model, predictor._recipe.batch(batch, predictor.device)).cpu()
        if gpus_here():
            torch.cuda.synchronize()
        return time.perf_counter() - began

    return run


def ours(model: Path, source: Path, at_once: int, folder: Path) -> Callable[[], float]:
    """Returns a function that times a batch prediction, seconds."""
    from gpu_pipelines.prediction.model import model_in
    from gpu_pipelines.prediction.predict import predict_batch
    from gpu_pipelines.prediction.settings import PredictSettings

    settings = PredictSettings(source=str(source), rows_at_once=at_once)

    def run() -> float:
        began = time.perf_counter()
        with redirect_stdout(sys.stderr):
            found = predict_batch(
                settings, model_in(model, str(model)), str(folder / "out"), str(folder / "unfinished")
            )
        assert found.rows_rejected == 0
        return time.perf_counter() - began

    return run


def peer(model: Path, texts: list[str], at_once: int, longest: int) -> Callable[[], float]:
    """Returns a function that times transformers' pipeline over texts, seconds."""
    import torch
    from transformers import pipeline

    device = 0 if torch.cuda.is_available() else -1
    classify: Any = pipeline("text-classification", model=str(model), top_k=None, batch_size=at_once, device=device)

    def run() -> float:
        began = time.perf_counter()
        found = classify(texts, truncation=True, max_length=longest)
        assert len(found) == len(texts)
        return time.perf_counter() - began

    return run


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--pixels", type=int, default=224, help="of a side of what the model gets")
    parser.add_argument("--tokens", type=int, default=128, help="of the longest text")
    parser.add_argument("--model-of-images", default="convnext-tiny")
    parser.add_argument("--model-of-texts", default="bert-base")
    parser.add_argument("--rows-at-once", type=int, default=32)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, at_once = Path(scratch), given.rows_at_once
        contenders: dict[str, dict[str, Callable[[], float]]] = {}
        rows = {"images": given.images, "texts": given.texts}
        if given.images:
            model = export_images(given.model_of_images, folder / "of-images", given.pixels)
            source = write_images(folder / "images", given.images)
            contents: list[Any] = [path.read_bytes() for path in sorted(source.iterdir())]
            contenders["images"] = {
                "bare": bare(model, contents, at_once),
                "ours": ours(model, source, at_once, folder / "images-done"),
            }
        if given.texts:
            model = export_texts(given.model_of_texts, folder / "of-texts", given.tokens)
            source = write_texts(folder / "texts.jsonl", given.texts, given.tokens)
            texts = [json.loads(line)["text"] for line in source.read_text(encoding="utf-8").splitlines()]
            contenders["texts"] = {
                "bare": bare(model, texts, at_once),
                "ours": ours(model, source, at_once, folder / "texts-done"),
                "transformers": peer(model, texts, at_once, given.tokens),
            }
        show({kind: timed(runs, given.rounds) for kind, runs in contenders.items()}, rows)


def timed(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender in each round, after one that does not count; each round begins with another."""
    runs["bare"]()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        names = list(runs)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(runs[name]())
    return found


def show(found: dict[str, dict[str, list[float]]], rows: dict[str, int]) -> None:
    """Prints the table and the JSON object."""
    import torch

    results, ratios = {}, {}
    for kind, seconds in found.items():
        for name, each in seconds.items():
            rate = rows[kind] / statistics.median(each)
            results[f"{kind}, {name}, rows/s"] = round(rate, 2)
            against = statistics.median(b / s for b, s in zip(seconds["bare"], each, strict=True))
            print(f"{kind:<7} {name:<13} {rate:10.1f} rows/s   {against:5.2f} of the bare forward passes")
            if name == "ours":
                ratios[f"{kind}, ours / bare"] = round(against, 3)
                print(f"{'':<21} goal: {GOAL} of them: {'reached' if against >= GOAL else 'MISSED'}")
        if "transformers" in seconds:
            pairs = zip(seconds["transformers"], seconds["ours"], strict=True)
            ratios[f"{kind}, ours / transformers"] = round(statistics.median(other / own for other, own in pairs), 3)
    machine = {
        "cpus": cores(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    print(json.dumps({"benchmark": "batch_prediction", "machine": machine, "results": results, "ratios": ratios}))


if __name__ == "__main__":
    main()

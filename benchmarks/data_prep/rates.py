"""The speed of data preparation, beside the libraries that do the work.

Run with `python benchmarks/data_prep/rates.py [--megabytes N] [--images N] [--rounds N]`. Contenders take turns, each
in its own process; the time begins after the imports.

Texts, a language model with rows of 512 tokens: ours from JSON lines to the finished dataset (read, checked, hashed,
tokenized, packed, written with hashes); the bare batch encoder of `tokenizers` on texts in memory, on all cores, whose
tokens are discarded; the same of `fastokens`, which ours uses; and the usual way with `datasets`: load_dataset,
map(batched, num_proc=2), grouped to blocks of 512 tokens, save_to_disk. Images, to 224 × 224 pixels: ours from the
folder to the finished dataset; and Pillow alone in as many threads as there are cores, opened, drafted, resized and
discarded.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from machine import machine

from gpu_pipelines.processors import cores

LENGTH, SIDE = 512, 224
TOKENIZER = "tokenizer/tokenizer.json"
GOAL_BARE_TEXTS, GOAL_DATASETS, GOAL_BARE_IMAGES = 0.85, 2.0, 0.9


def our_texts(folder: Path, out: Path) -> Callable[[], None]:
    from gpu_pipelines.data.prepare import prepare_data
    from gpu_pipelines.data.settings import PrepareSettings
    from gpu_pipelines.data.text.prepare import TextPreparation  # noqa: F401

    settings = PrepareSettings(
        source=str(folder / "texts.jsonl"),
        task="causal_lm",
        tokenizer=str(folder / "tokenizer"),
        sequence_length=LENGTH,
    )
    import pandas  # noqa: F401 (pyarrow imports it with its first array where it is installed; datasets needs it)
    from transformers import AutoTokenizer  # noqa: F401

    return lambda: print(prepare_data(settings, out / "dataset").rows_kept)


def bare_tokenizers(folder: Path, out: Path) -> Callable[[], None]:
    from tokenizers import Tokenizer

    return in_batches(folder, Tokenizer.from_file(str(folder / TOKENIZER)).encode_batch_fast)


def bare_fastokens(folder: Path, out: Path) -> Callable[[], None]:
    from fastokens import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    return in_batches(folder, partial(tokenizer.encode_batch_flat, add_special_tokens=True))


def in_batches(folder: Path, encode: Callable[[list[str]], object]) -> Callable[[], None]:
    """Encodes texts in memory."""
    with (folder / "texts.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]

    def work() -> None:
        for start in range(0, len(texts), 1000):
            encode(texts[start : start + 1000])

    return work


def usual_datasets(folder: Path, out: Path) -> Callable[[], None]:
    import datasets
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"input_ids": tokenizer(batch["text"])["input_ids"]}

    def group(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        tokens = [token for document in batch["input_ids"] for token in document]
        whole = len(tokens) // LENGTH * LENGTH
        return {"input_ids": [tokens[start : start + LENGTH] for start in range(0, whole, LENGTH)]}

    def work() -> None:
        table = datasets.load_dataset(
            "json", data_files=str(folder / "texts.jsonl"), split="train", cache_dir=str(out / "cache")
        )
        encoded = table.map(encode, batched=True, num_proc=2, remove_columns=["text"])
        encoded.map(group, batched=True, num_proc=2).save_to_disk(out / "dataset")

    return work


def our_images(folder: Path, out: Path) -> Callable[[], None]:
    import pandas  # noqa: F401

    from gpu_pipelines.data.images.prepare import ImagePreparation  # noqa: F401
    from gpu_pipelines.data.prepare import prepare_data
    from gpu_pipelines.data.settings import PrepareSettings

    settings = PrepareSettings(source=str(folder / "images"), image_size=SIDE, color_mode="RGB")
    return lambda: print(prepare_data(settings, out / "dataset").rows_kept)


def bare_pillow(folder: Path, out: Path) -> Callable[[], None]:
    from concurrent.futures import ThreadPoolExecutor

    from PIL import Image

    def load(path: Path) -> None:
        with Image.open(path) as image:
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)

    def work() -> None:
        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(load, sorted((folder / "images").rglob("*.jpg"))))

    return work


CONTENDERS = {
    "texts": (our_texts, bare_tokenizers, bare_fastokens, usual_datasets),
    "images": (our_images, bare_pillow),
}


def run_one(name: str, folder: Path) -> None:
    """Runs one contender and prints its wall time and the CPU time of it and its child processes, seconds."""
    work = {work.__name__: work for works in CONTENDERS.values() for work in works}[name]
    with tempfile.TemporaryDirectory(dir=folder) as out:
        ready = work(folder, Path(out))
        start, start_cpu = time.perf_counter(), cpu_seconds()
        ready()
        print(json.dumps([time.perf_counter() - start, cpu_seconds() - start_cpu]))


def cpu_seconds() -> float:
    """CPU time of this process and of its child processes that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def seconds(name: str, folder: Path) -> tuple[float, float]:
    """The output of `run_one` in its own process."""
    command = [sys.executable, __file__, "--only", name, "--folder", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    passed, used = json.loads(done.stdout.splitlines()[-1])
    return passed, used


def make(folder: Path, megabytes: int, images: int) -> None:
    """Writes the corpus, a tokenizer of 8,000 tokens trained on a part of it, and the images."""
    from itertools import islice

    from corpus import write_corpus, write_images

    from gpu_pipelines.tasks.text_encoding import TextEncoder

    write_corpus(folder / "texts.jsonl", megabytes)
    with (folder / "texts.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in islice(file, 1000)]
    TextEncoder.train(texts, 8000, ends=False).save(folder / "tokenizer", LENGTH)
    write_images(folder / "images", images)


def measure(folder: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Wall time and CPU time of each contender, seconds, round by round."""
    found: dict[str, list[tuple[float, float]]] = {work.__name__: [] for works in CONTENDERS.values() for work in works}
    for number in range(rounds):
        for works in CONTENDERS.values():
            for work in works[:: -1 if number % 2 else 1]:
                found[work.__name__].append(seconds(work.__name__, folder))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        run_one(given.only, given.folder)
        return
    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch), given.megabytes, given.images)
        found = measure(Path(scratch), given.rounds)
    report(found, given.megabytes, given.images)


def report(found: dict[str, list[tuple[float, float]]], megabytes: int, images: int) -> None:
    """Prints rates and the medians of the ratios of a round, then everything as one JSON object."""
    for name, times in found.items():
        kind, amount = ("images/s", images) if name in ("our_images", "bare_pillow") else ("MB/s", megabytes)
        passed, used = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{name:16} {amount / passed:10,.1f} {kind:10} {amount / used:10,.1f} a second of one processor")
    ratios = {}
    for ours, peer, goal in (
        ("our_texts", "bare_tokenizers", GOAL_BARE_TEXTS),
        ("our_texts", "bare_fastokens", None),
        ("our_texts", "usual_datasets", GOAL_DATASETS),
        ("our_images", "bare_pillow", GOAL_BARE_IMAGES),
    ):
        pairs = zip(found[ours], found[peer], strict=True)
        ratios[f"{ours} / {peer}"] = ratio = statistics.median(theirs[0] / own[0] for own, theirs in pairs)
        missed = "" if goal is None else f" (goal at least {goal}{'' if ratio >= goal else ': missed'})"
        print(f"{ours} / {peer}: {ratio:.3f}{missed}")
    results = {
        name: {"seconds": [passed for passed, _ in times], "cpu_seconds": [used for _, used in times]}
        for name, times in found.items()
    }
    what = {"benchmark": "data_prep_rates", "machine": machine(), "megabytes": megabytes, "images": images}
    print(json.dumps({**what, "results": results, "ratios": ratios}))


if __name__ == "__main__":
    main()

"""The speed of preparing texts on a Ray cluster of this machine, beside Ray Data alone and `datasets`.

Run with `python benchmarks/data_prep/clusters.py [--megabytes N] [--files N] [--rounds N]`. A language model, rows of
512 tokens, from JSON lines. Ours is the whole preparation (read, checked, hashed, deduplicated, split, tokenized,
packed, written with hashes), with processes and with two workers of a Ray cluster. Ray Data is only
`read_json → map_batches → write_parquet` with the same tokenizer and blocks of 512 tokens; `datasets` is load_dataset,
map(num_proc=2) twice and save_to_disk. Contenders take turns, each in its own process; the time begins after the
imports and, on Ray, with a connected cluster.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from machine import machine

LENGTH, WORKERS = 512, 2


def settings_of(folder: Path, address: str = "") -> Any:
    from gpu_pipelines.data.settings import PrepareSettings

    return PrepareSettings(
        source=str(folder / "texts"), task="causal_lm", tokenizer=str(folder / "tokenizer"), sequence_length=LENGTH,
        ray_address=address,
    )  # fmt: skip


def ours(folder: Path, out: Path, address: str) -> Callable[[], None]:
    from gpu_pipelines.data.prepare import prepare_together
    from gpu_pipelines.data.text.prepare import TextPreparation  # noqa: F401
    from gpu_pipelines.data.units.unfinished_work import UnfinishedWork
    from gpu_pipelines.distributed.executor import executor_for

    executor = executor_for(address)

    def work() -> None:
        kept = UnfinishedWork(str(out / "work"), out)
        prepare_together(settings_of(folder, address), out / "dataset", kept, executor, unit_weight=1 << 20)

    return work


def our_processes(folder: Path, out: Path) -> Callable[[], None]:
    return ours(folder, out, "")


def our_cluster(folder: Path, out: Path) -> Callable[[], None]:
    return ours(folder, out, os.environ["RAY_ADDRESS"])


def ray_data(folder: Path, out: Path) -> Callable[[], None]:
    import ray
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False

    def encode(batch: dict[str, Any]) -> dict[str, list[list[int]]]:
        return {"input_ids": blocks(tokenizer(list(batch["text"]))["input_ids"])}

    return lambda: ray.data.read_json(str(folder / "texts")).map_batches(encode).write_parquet(str(out / "dataset"))


def usual_datasets(folder: Path, out: Path) -> Callable[[], None]:
    import datasets
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"input_ids": blocks(tokenizer(batch["text"])["input_ids"])}

    def work() -> None:
        table = datasets.load_dataset(
            "json", data_files=str(folder / "texts/*.jsonl"), split="train", cache_dir=str(out / "cache")
        )
        table.map(encode, batched=True, num_proc=WORKERS, remove_columns=["text"]).save_to_disk(out / "dataset")

    return work


def blocks(encoded: list[list[int]]) -> list[list[int]]:
    """Complete rows from the tokens of some texts, one after another."""
    tokens = [token for document in encoded for token in document]
    return [tokens[start : start + LENGTH] for start in range(0, len(tokens) // LENGTH * LENGTH, LENGTH)]


CONTENDERS = (our_processes, our_cluster, ray_data, usual_datasets)


def make(folder: Path, megabytes: int, files: int) -> None:
    """Writes the corpus to several files, and a tokenizer of 8,000 tokens trained on a part of it."""
    from corpus import write_corpus

    from gpu_pipelines.tasks.text_encoding import TextEncoder

    write_corpus(folder / "all.jsonl", megabytes)
    lines = (folder / "all.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "texts").mkdir()
    for number in range(files):
        (folder / f"texts/{number:03d}.jsonl").write_text("".join(lines[number::files]), encoding="utf-8")
    texts = [json.loads(line)["text"] for line in islice(lines, 1000)]
    TextEncoder.train(texts, 8000, ends=False).save(folder / "tokenizer", LENGTH)


@contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """A Ray cluster of one node with two workers; its address and token are in the environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    log = folder / "ray.log"
    with log.open("w") as output:
        started = subprocess.Popen(
            [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}",
             f"--num-cpus={WORKERS}", "--include-dashboard=false", "--disable-usage-stats",
             "--object-store-memory=300000000"],
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        while "Ray runtime started" not in log.read_text():
            assert started.poll() is None, log.read_text()
            time.sleep(0.2)
        os.environ["RAY_ADDRESS"] = log.read_text().split("--address='")[1].split("'")[0]
        yield
    finally:
        for process in psutil.Process(started.pid).children(recursive=True):
            process.kill()
        started.kill()
        started.wait()


def seconds(name: str, folder: Path) -> float:
    """Runs one contender in its own process."""
    command = [sys.executable, __file__, "--only", name, "--folder", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.splitlines()[-1])


def run_one(name: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as out:
        ready = {work.__name__: work for work in CONTENDERS}[name](folder, Path(out))
        start = time.perf_counter()
        ready()
        print(time.perf_counter() - start, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        run_one(given.only, given.folder)
        return
    with tempfile.TemporaryDirectory(prefix="clusters-") as name:
        folder = Path(name)
        make(folder, given.megabytes, given.files)
        found: dict[str, list[float]] = {work.__name__: [] for work in CONTENDERS}
        with cluster(folder):
            for _ in range(given.rounds):
                for work in CONTENDERS:
                    found[work.__name__].append(seconds(work.__name__, folder))
    rates = {name: given.megabytes / statistics.median(times) for name, times in found.items()}
    print(f"{'':16}{'seconds':>10}{'MB/s':>8}   of {given.megabytes} MB of texts in {given.files} files")
    for name, times in found.items():
        print(f"{name:16}{statistics.median(times):>10.1f}{rates[name]:>8.2f}")
    ratios = {
        f"our_cluster_over_{name}": rates["our_cluster"] / rate for name, rate in rates.items() if name != "our_cluster"
    }
    results = {"seconds": found, "megabytes": given.megabytes, "files": given.files}
    print(json.dumps({"benchmark": "clusters", "machine": machine(), "results": results, "ratios": ratios}))


if __name__ == "__main__":
    main()

"""The most memory of a preparation, for a small input and one ten times as large.

Run with `python benchmarks/data_prep/memory.py [--megabytes 100 1000] [--only packed padded trained images]`. Sampled
ten times a second: the proportional set size (PSS, /proc/PID/smaps_rollup) of the step's process and all its
descendants, so that shared pages count once. Four preparations, each with its report: texts packed to rows of 512
tokens; one text in a row, padded; packed, after a tokenizer was trained on them; JPEG images to 224 × 224 pixels.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from corpus import write_corpus, write_images
from machine import machine

from gpu_pipelines.tasks.text_encoding import TextEncoder

GOAL_RATIO, GOAL_MIB = 1.2, 1024
KINDS = ("packed", "padded", "trained", "images")
PREPARE = """
import json, sys
from pathlib import Path
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.report import write_report
from gpu_pipelines.data.settings import PrepareSettings
if __name__ == "__main__":
    out = Path(sys.argv[2])
    prepare_data(PrepareSettings(**json.loads(sys.argv[1])), out)
    write_report(out, out / "report.html")
"""


def settings_of(kind: str, folder: Path) -> dict[str, Any]:
    """The settings of a preparation, as fields of `PrepareSettings`."""
    if kind == "images":
        return {"source": str(folder / "images"), "image_size": 224, "color_mode": "RGB"}
    tokenizer = "train" if kind == "trained" else str(folder / "tokenizer")
    source = str(folder / "texts.jsonl")
    return {"source": source, "task": "causal_lm", "tokenizer": tokenizer, "packing": kind != "padded"}


def peak_mib(command: list[str]) -> float:
    """The most memory of a command and all its descendants, MiB."""
    if sys.platform != "linux":
        raise SystemExit("The proportional set size exists only on Linux: run it there.")
    most = 0.0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        root = psutil.Process(running.pid)
        while running.poll() is None:
            try:
                family = [root, *root.children(recursive=True)]
                most = max(most, sum(process.memory_full_info().pss for process in family) / 2**20)
            except psutil.Error:
                pass
            time.sleep(0.1)
    if running.returncode:
        raise SystemExit(f"{command} ended with {running.returncode}")
    return most


def make(folder: Path, megabytes: int, kinds: list[str]) -> None:
    """Writes this many million bytes of texts and of images, and a tokenizer of 8,000 tokens."""
    folder.mkdir()
    (folder / "prepare.py").write_text(PREPARE, encoding="utf-8")
    if "images" in kinds:
        write_images(folder / "images", megabytes=megabytes)
    if kinds != ["images"]:
        texts = folder / "texts.jsonl"
        write_corpus(texts, megabytes)
        with texts.open(encoding="utf-8") as file:
            some = [json.loads(next(file))["text"] for _ in range(500)]
        TextEncoder.train(some, 8000, ends=False).save(folder / "tokenizer", 512)


def measure(megabytes: int, kinds: list[str]) -> dict[str, float]:
    """The peak of each kind of preparation, MiB."""
    peaks = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "in"
        make(folder, megabytes, kinds)
        for kind in kinds:
            out = Path(scratch) / "out"
            given = json.dumps(settings_of(kind, folder))
            peaks[kind] = peak_mib([sys.executable, str(folder / "prepare.py"), given, str(out)])
            print(f"{kind:8} {megabytes:6,} MB: {peaks[kind]:,.0f} MiB", flush=True)
            shutil.rmtree(out)
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs=2, default=[100, 1000])
    parser.add_argument("--only", choices=KINDS, nargs="+", default=KINDS)
    given = parser.parse_args()
    small, large = (measure(megabytes, list(given.only)) for megabytes in given.megabytes)
    ratios = {}
    for kind in given.only:
        ratios[kind] = ratio = large[kind] / small[kind]
        missed = "" if ratio <= GOAL_RATIO and large[kind] < GOAL_MIB else ": missed"
        print(f"{kind:8} {ratio:.3f} × (goal at most {GOAL_RATIO} ×, and under {GOAL_MIB:,} MiB{missed})")
    results = {"peak_mib": dict(zip(map(str, given.megabytes), (small, large), strict=True))}
    print(json.dumps({"benchmark": "data_prep_memory", "machine": machine(), "results": results, "ratios": ratios}))


if __name__ == "__main__":
    main()

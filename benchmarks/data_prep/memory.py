"""The most memory that a preparation takes, for a small input and one ten times as large.

Run with `python benchmarks/data_prep/memory.py [--megabytes 100 1000]`. Sampled ten times a second: the proportional
set size (PSS, /proc/PID/smaps_rollup) of the step's process and all processes below it, so that pages they share count
once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from corpus import write_corpus

from gpu_pipelines.recipes.text_encoding import TextEncoder

GOAL_RATIO, GOAL_MIB = 1.2, 1024
PREPARE = """
import sys
from pathlib import Path
from gpu_pipelines.components.data_prep.prepare import prepare_data
from gpu_pipelines.components.data_prep.settings import PrepareSettings
if __name__ == "__main__":
    settings = PrepareSettings(source=sys.argv[1], task="causal_lm", tokenizer=sys.argv[2])
    prepare_data(settings, Path(sys.argv[3]))
"""


def peak_mib(command: list[str]) -> float:
    """The most memory of a command and all processes below it, MiB."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs=2, default=[100, 1000])
    given = parser.parse_args()
    peaks = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "prepare.py").write_text(PREPARE, encoding="utf-8")
        for megabytes in given.megabytes:
            texts = folder / "texts.jsonl"
            write_corpus(texts, megabytes)
            if not (folder / "tokenizer").exists():
                with texts.open(encoding="utf-8") as file:
                    some = [json.loads(next(file))["text"] for _ in range(500)]
                TextEncoder.train(some, 8000, ends=False).save(folder / "tokenizer", 512)
            names = [str(folder / name) for name in ("prepare.py", "texts.jsonl", "tokenizer", f"out-{megabytes}")]
            peaks[megabytes] = peak_mib([sys.executable, *names])
            print(f"{megabytes:6,} MB: {peaks[megabytes]:,.0f} MiB", flush=True)
    small, large = peaks.values()
    missed = "" if large / small <= GOAL_RATIO and large < GOAL_MIB else ": missed"
    print(f"{large / small:.3f} × (goal at most {GOAL_RATIO} ×, and under {GOAL_MIB} MiB{missed})")
    print(json.dumps({"peak_mib": peaks}))


if __name__ == "__main__":
    main()

"""Tests the engine on the GPUs of a fresh machine: first whether it trains correctly, then how fast.

Run by `make bench-gpu`. Each part is a separate program and can be run alone; a failed one does not keep the others
from running. Prints their tables, and as its last line one JSON object. Ends with status 1 if a part failed. `--device
cpu` tries the correctness without a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from contest import COMPILED, HERE, Machine, conclude

from gpu_pipelines.accelerators.memory_estimate import estimate_memory
from gpu_pipelines.accelerators.workload import Workload

#: Rates come from one round: an otherwise idle GPU varies little. Checkpoints cost ours and a plain loop's.
PARTS = {
    "mfu": ("gpu_mfu.py", "--without-contest", "--compile", "--steps", "30"),
    "throughput": ("throughput.py", "--device", "cuda", "--rounds", "1", "--steps", "60"),
    "checkpoints": (
        *("checkpoint_cost.py", "--device", "cuda", "--rounds", "1", "--intervals", "2"),
        *("--models", "GPT", "--contenders", f"ours,hand-written,{COMPILED}"),
    ),
    "language": ("gpu_language.py", "--cases", "0"),
}


def main() -> None:
    """Runs all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the correctness alone")
    asked = parser.parse_args()
    machine = Machine.of(asked.device)
    print(f"on {machine}", flush=True)
    told = {"correctness": told_by("gpu_correctness.py", "--device", asked.device)}
    if asked.device == "cuda":
        told |= {name: told_by(*program) for name, program in PARTS.items()}
        show_memory(told["mfu"])
    failed = [name for name, each in told.items() if each is None]
    print(f"failed: {', '.join(failed)}" if failed else "all parts have run")
    ratios = {name: each["ratios"] for name, each in told.items() if each}
    conclude("training_gpu", machine, {name: each["results"] for name, each in told.items() if each}, ratios)
    sys.exit(1 if failed else 0)


def show_memory(mfu: dict[str, Any] | None) -> None:
    """Prints the memory of a GPU beside the estimate of `advise`."""
    if mfu is None:
        return
    gpu = mfu["results"]
    job = Workload(
        parameters=gpu["parameters"],
        tokens=1e9,
        layers=16,
        hidden_size=2048,
        sequence_length=2048,
        batch=4,
        vocabulary=32_000,
        recompute=False,
    )
    estimate = estimate_memory(job, "bf16", 1, "ddp")
    print(f"\nmemory of a GPU: {gpu['memory_gb']:.1f} GB; advise says {estimate.total:.1f} ({estimate.told()})")


def told_by(program: str, *arguments: str) -> dict[str, Any] | None:
    """Runs another benchmark, and returns the JSON object of its last line; None if it failed."""
    print(f"\n{program} {' '.join(arguments)}", flush=True)
    done = subprocess.run(
        [sys.executable, str(HERE / program), *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout, end="", flush=True)
    if done.returncode:
        return None
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


if __name__ == "__main__":
    main()

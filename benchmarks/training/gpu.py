"""What the engine does on the GPUs of a fresh machine: first whether it trains right, then how fast.

Run by `make bench-gpu`. Each way of training is compared with one process on the CPU, an interrupted training with one
left alone; then throughput, MFU and memory beside what `advise` says, and what checkpoints cost. Prints a table for
each part, and as its last line one JSON object. Ends with status 1 where a training went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from contest import HERE, Machine, conclude
from workloads import write_dataset

from gpu_pipelines.accelerators.memory_estimate import estimate_memory
from gpu_pipelines.accelerators.workload import Workload
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

sys.path.insert(0, str(HERE.parents[1] / "tests"))
sys.path.insert(0, str(HERE.parents[1] / "tests" / "training"))
from started_training import run_training, tensors, weights_digest

STEPS, EVERY, TOKENS, VOCABULARY = 40, 10, 128, 400
#: Largest difference of a loss from the CPU's, in parts of it: another order of the sums; TF32; the bits of bf16.
TOLERANCES = {"fp32": 0.005, "bf16": 0.05}
SETTINGS = TrainingSettings(
    model="llama-micro",
    max_steps=STEPS,
    global_batch_size=32,
    checkpoint_every_steps=EVERY,
    precision="fp32",
    warmup_steps=4,
    learning_rate=1e-3,
)


def main() -> None:
    """Runs all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu tries the correctness alone")
    asked = parser.parse_args()
    machine = Machine.of(asked.device)
    print(f"on {machine}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        write_dataset(data, "causal_lm", (TOKENS,), 512, VOCABULARY)
        curves = compare_ways(machine, data, Path(scratch))
        resume = compare_resumed(machine, data, Path(scratch))
    results: dict[str, Any] = {"curves": curves, "resume": resume}
    if asked.device == "cuda":
        results |= measure()
    right = resume["same"] and all(way["largest_difference"] <= way["tolerance"] for way in curves.values())
    conclude("training_gpu", machine, results, {"right": float(right)})
    sys.exit(0 if right else 1)


def ways_of(machine: Machine) -> dict[str, TrainingSettings]:
    """The ways of training that are compared with the CPU's."""
    ways = {"ddp, fp32": SETTINGS, "fsdp, fp32": replace(SETTINGS, parallelism="fsdp")}
    ways["ddp, bf16"] = replace(SETTINGS, precision="bf16")
    ways["fsdp, bf16, recomputed"] = replace(
        SETTINGS, precision="bf16", parallelism="fsdp", activation_checkpointing=True
    )
    ways["ddp, bf16, recomputed selectively"] = replace(
        SETTINGS, precision="bf16", activation_checkpointing=True, recompute="selective"
    )
    ways["ddp, fp32, micro-batches"] = replace(SETTINGS, micro_batch_size=32 // machine.processes // 2)
    if machine.device == "cuda":
        ways["ddp, bf16, compiled"] = replace(SETTINGS, precision="bf16", compile_model=True)
        ways["fsdp, bf16, compiled"] = replace(ways["ddp, bf16, compiled"], parallelism="fsdp")
    return ways


@contextmanager
def on(accelerator: str) -> Iterator[None]:
    """Trains on these devices; on all GPUs where empty."""
    before = os.environ.get("GPU_PIPELINES_ACCELERATOR")
    os.environ["GPU_PIPELINES_ACCELERATOR"] = accelerator
    try:
        yield
    finally:
        os.environ.pop("GPU_PIPELINES_ACCELERATOR")
        if before is not None:
            os.environ["GPU_PIPELINES_ACCELERATOR"] = before


def compare_ways(machine: Machine, data: Path, scratch: Path) -> dict[str, dict[str, float]]:
    """The loss curve of each way beside that of one process on the CPU."""
    with on("cpu:1"):
        expected = losses(SETTINGS, data, scratch / "cpu")
    found = {}
    print(f"\n{'way':28} {'largest difference':>20} {'tolerance':>10}")
    for number, (name, settings) in enumerate(ways_of(machine).items()):
        with on("" if machine.device == "cuda" else "cpu:2"):
            curve = losses(settings, data, scratch / f"way-{number}")
        largest = max(abs(a - b) / b for a, b in zip(curve, expected, strict=True))
        found[name] = {"largest_difference": largest, "tolerance": TOLERANCES[settings.precision]}
        print(f"{name:28} {largest:20.5f} {TOLERANCES[settings.precision]:10.3f}", flush=True)
    return found


def losses(settings: TrainingSettings, data: Path, directory: Path) -> list[float]:
    """The losses of a training, step by step."""
    summary = train_model(settings, data, str(directory))
    assert summary is not None
    return [entry["loss"] for entry in summary.metrics]


def compare_resumed(machine: Machine, data: Path, scratch: Path) -> dict[str, Any]:
    """A training that was killed and started again, beside one left alone."""
    last, settings = f"step-{STEPS:08d}", replace(SETTINGS, parallelism="fsdp")
    devices = {"GPU_PIPELINES_ACCELERATOR": "" if machine.device == "cuda" else "cpu:2"}
    alone, killed = scratch / "alone", scratch / "killed"
    run_training(settings, data, str(alone), environment=devices)
    first = run_training(
        settings,
        data,
        str(killed),
        stop_when=lambda line: line.startswith(f"step {2 * EVERY}/") and "val" in line,
        by=signal.SIGKILL,
        environment=devices,
    )
    run_training(settings, data, str(killed), environment=devices)
    if first.status == 0:
        sys.exit("The training that was to be killed had ended before.")
    same = weights_digest(alone / last) == weights_digest(killed / last)
    theirs = tensors(killed / last)
    difference = max(
        float((tensor.double() - theirs[name].double()).abs().max()) for name, tensor in tensors(alone / last).items()
    )
    print(f"\nkilled and continued: {'the same bits' if same else f'up to {difference:.2e} apart'}")
    return {"same": same, "largest_difference": difference}


def measure() -> dict[str, Any]:
    """Rates, memory and the cost of checkpoints, each by its own benchmark."""
    mfu = told_by("gpu_mfu.py", "--without-contest")
    contest = told_by("throughput.py", "--device", "cuda", "--rounds", "1", "--steps", "60")
    checkpoints = told_by("checkpoint_cost.py", "--device", "cuda", "--rounds", "1", "--intervals", "2")
    language = told_by("gpu_language.py")
    gpu = mfu["results"]
    job = Workload(parameters=gpu["parameters"], tokens=1e9, sequence_length=2048, batch=4, vocabulary=32_000)
    estimate = estimate_memory(replace(job, recompute=False), "bf16", 1, "ddp")
    print(f"\nmemory of a GPU: {gpu['memory_gb']:.1f} GB; advise says {estimate.total:.1f} ({estimate.told()})")
    return {
        "mfu": mfu["ratios"],
        "language": language["results"],
        "throughput": contest["ratios"],
        "checkpoints": checkpoints["ratios"],
        "memory_gb": {"measured": gpu["memory_gb"], "estimated": estimate.total},
    }


def told_by(program: str, *arguments: str) -> dict[str, Any]:
    """Runs another benchmark, and gives the JSON object of its last line."""
    print(f"\n{program} {' '.join(arguments)}", flush=True)
    done = subprocess.run(
        [sys.executable, str(HERE / program), *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    print(done.stdout, end="", flush=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


if __name__ == "__main__":
    main()

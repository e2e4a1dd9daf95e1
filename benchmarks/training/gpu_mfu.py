"""Model FLOPs utilization of a GPT with a billion parameters on GPUs, beside the measured rate of multiplication.

Run by `make bench-training`; where there is no GPU it says so and ends. Prints a table, and as its last line one JSON
object. The comparison with the other contenders on GPUs is throughput.py --device cuda, which this runs at its end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from contest import HERE, Machine, conclude
from workloads import write_dataset

from gpu_pipelines.training.model.compute import peak_flops
from gpu_pipelines.training.settings import TrainingSettings
from gpu_pipelines.training.train import train_model

MATRIX, MULTIPLICATIONS, WARMUP = 8192, 50, 10
LAYERS, WIDTH = 16, 2048  # of llama-1b, for the operations of attention
VOCABULARY = 32_000
GOAL = 0.5


def main() -> None:
    """Measures the GPU, then the training on all GPUs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--sequence-length", type=int, default=2048)
    parser.add_argument("--rows-per-gpu", type=int, default=16, help="of the global batch")
    parser.add_argument("--micro-batch-size", type=int, default=4, help="0 takes the part of a GPU in one")
    parser.add_argument("--compile", action="store_true", help="the layers, with torch.compile")
    parser.add_argument("--without-contest", action="store_true", help="leave out throughput.py --device cuda")
    asked = parser.parse_args()
    machine = Machine.of("cuda")
    rate = matrix_multiplication_rate()
    peak = peak_flops(torch.cuda.get_device_name(), "bf16")
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as scratch:
        measured = train_and_measure(asked, machine, Path(scratch))
    per_gpu = measured["flops_per_second"] / machine.processes
    ratios = {"MFU of the measured rate": round(per_gpu / rate, 3)}
    if peak:
        ratios["MFU of the catalog's peak"] = round(per_gpu / peak, 3)
        ratios["measured rate / catalog's peak"] = round(rate / peak, 3)
    print(f"bf16 multiplication of {MATRIX} × {MATRIX} matrices {rate / 1e12:8.1f} TFLOP/s")
    print(f"training, {measured['parameters'] / 1e9:.2f} billion parameters      {per_gpu / 1e12:8.1f} TFLOP/s a GPU")
    for name, ratio in ratios.items():
        print(f"{name:42} {ratio:6.3f}" + (f"   goal at least {GOAL}" if name[-13:] == "measured rate" else ""))
    if not asked.without_contest:
        contest = [sys.executable, str(HERE / "throughput.py"), "--device", "cuda", "--rounds", "3"]
        subprocess.run(contest, check=True)
    results = {"matmul_tflops": rate / 1e12, "catalog_tflops": peak / 1e12 if peak else None, **measured}
    conclude("training_gpu_mfu", machine, results, ratios)


def matrix_multiplication_rate() -> float:
    """Operations per second of the multiplication of two square bf16 matrices, the median of many."""
    a, b = (torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for number in range(WARMUP + MULTIPLICATIONS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        a @ b
        ended.record()
        torch.cuda.synchronize()
        if number >= WARMUP:
            seconds.append(began.elapsed_time(ended) / 1e3)
    return 2 * MATRIX**3 / statistics.median(seconds)


def train_and_measure(asked: argparse.Namespace, machine: Machine, scratch: Path) -> dict[str, Any]:
    """Trains llama-1b with the choices of `auto`; the throughput is the median over the second half of the steps."""
    length, batch = asked.sequence_length, asked.rows_per_gpu * machine.processes
    write_dataset(scratch / "data", "causal_lm", (length,), batch * 4, VOCABULARY)
    settings = TrainingSettings(
        model="llama-1b",
        max_steps=asked.steps,
        learning_rate=3e-4,
        global_batch_size=batch,
        micro_batch_size=asked.micro_batch_size,
        compile_model="on" if asked.compile else "off",
        checkpoint_every_steps=asked.steps,
    )
    summary = train_model(settings, scratch / "data", str(scratch / "checkpoints"))
    assert summary is not None
    configuration = json.loads((scratch / "checkpoints" / "training.json").read_text(encoding="utf-8"))
    entries = summary.metrics[len(summary.metrics) // 2 :]
    tokens = statistics.median(entry["samples_per_second"] for entry in entries) * length
    parameters = count_parameters(scratch / "checkpoints" / summary.checkpoints[-1])
    return {
        "parameters": parameters,
        "tokens_per_second": round(tokens, 1),
        "flops_per_second": tokens * flops_per_token(parameters, length),
        "mfu_of_the_engine": statistics.median(entry.get("mfu", 0.0) for entry in entries),
        "precision": configuration["precision"],
        "parallelism": configuration["parallelism"],
        "memory_gb": max(entry["memory_gb"] for entry in entries),
    }


def flops_per_token(parameters: int, length: int) -> float:
    """Operations to train on one token: 6 for each parameter (the embedding is tied to the head), and attention's.

    Source: Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311, appendix B; half of its count for attention,
    because a causal kernel computes no more than that.
    """
    return 6 * parameters + 6 * LAYERS * WIDTH * length


def count_parameters(checkpoint: Path) -> int:
    """Numbers in the weights of a checkpoint: those with a moment in the optimizer."""
    from safetensors import safe_open

    found: dict[str, int] = {}
    for file in checkpoint.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is not a mapping)
                if name.endswith(".exp_avg"):
                    shape = opened.get_slice(name).get_shape()
                    found[f"{file.name} {name}"] = torch.Size(shape).numel()
    return sum(found.values())


if __name__ == "__main__":
    main()

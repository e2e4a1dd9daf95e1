"""The throughput that `accelerators advise` assumes, beside that of published trainings.

Run with `python benchmarks/advice.py`. The published figures, with their sources, are in published_runs.csv; the
network is that of the published machines, not of Google Cloud's. Nothing is timed.
"""

from __future__ import annotations

import csv
import json
import platform
from dataclasses import replace
from pathlib import Path

from gpu_pipelines.accelerators import load_catalog
from gpu_pipelines.accelerators.memory_estimate import estimate_memory
from gpu_pipelines.accelerators.time_estimate import assumed_mfu, estimate_time
from gpu_pipelines.accelerators.workload import Workload

RUNS = Path(__file__).with_name("published_runs.csv")


def published_runs() -> list[dict[str, str]]:
    """The rows of published_runs.csv."""
    with RUNS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def estimated_rate(run: dict[str, str]) -> float:
    """Tokens or images per second of one GPU, as estimated by `advise`; without the start of the machines."""
    catalog = load_catalog()
    gpus, nodes, gpu = int(run["gpus"]), int(run["nodes"]), catalog.gpus[run["gpu"]]
    shape = {name: int(run[name]) for name in ("layers", "hidden_size", "vocabulary", "sequence_length") if run[name]}
    workload = Workload(
        parameters=float(run["parameters"]),
        samples=1e6 * gpus,
        flops_per_sample=float(run["flops_per_sample"]) if run["flops_per_sample"] else None,
        lora_rank=int(run["lora_rank"]) if run["lora_rank"] else None,
        batch=int(run["batch"]),
        recompute=run["recompute"] == "yes",
        **shape,  # type: ignore[arg-type]
    )
    machine = catalog.machines_with(gpu.name)[-1]
    if run["network_gbps"]:
        machine = replace(machine, network_gbps=int(run["network_gbps"]))
    memory = estimate_memory(workload, "bf16", gpus, run["parallelism"])
    time = estimate_time(workload, gpu, "bf16", gpus, nodes, machine, memory, assumed_mfu(workload, gpu))
    units = workload.sequence_length if run["kind"] == "tokens" else 1
    return 1e6 * units / ((time.hours - time.start) * 3600)


def main() -> None:
    results, ratios = {}, {}
    print("| training | GPUs | published, per second and GPU | estimated | time: estimated ÷ published | source |")
    print("| --- | --- | --- | --- | --- | --- |")
    for run in published_runs():
        published, estimated = float(run["per_second_per_gpu"]), estimated_rate(run)
        name = f"{run['run']}, {run['gpus']} × {run['gpu']}, {run['sequence_length'] or 'images'}, {run['source']}"
        results[name], ratios[name] = {"published": published, "estimated": estimated}, published / estimated
        shown = f"{run['run']}{', ' + run['sequence_length'] + ' tokens' if run['sequence_length'] else ''}"
        print(
            f"| {shown} | {run['gpus']} × {run['gpu']} | {published:,.0f} {run['kind']} | {estimated:,.0f} "
            f"| {published / estimated:.2f} | {run['source']} |"
        )
    print(json.dumps({"benchmark": "advice", "machine": platform.machine(), "results": results, "ratios": ratios}))


if __name__ == "__main__":
    main()

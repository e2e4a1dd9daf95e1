"""How a job is made to fit the GPUs of a plan: the batch, sharding, recomputed activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpu_pipelines.accelerators.memory_estimate import MemoryEstimate, estimate_memory
from gpu_pipelines.accelerators.workload import Workload

#: Steps that a training is left with at least when the batch is chosen: with fewer, a larger batch only learns less.
LEAST_STEPS = 1000
#: Tokens, or samples of what has none, beyond which a larger batch of one GPU makes it no faster.
ENOUGH_TOKENS, ENOUGH_SAMPLES = 65_536, 256


def fitting(workload: Workload, precision: str, gpus: int, usable_gb: float) -> list[tuple[Workload, MemoryEstimate]]:
    """The ways in which a job fits: without and with recomputed activations, where both are open.

    The weights are sharded only where they do not fit whole; the batch, where it is open, is the largest power of two
    that fits.

    Args:
        workload: the job; not a measured one.
        precision: `bf16`, `fp16` or `fp32`.
        gpus: GPUs of all nodes together.
        usable_gb: memory of each that the job can plan with, GB.

    Returns:
        The job with batch and recomputation decided, and its memory; empty if it does not fit.
    """
    found = []
    for recompute in (False, True) if workload.recompute is None else (workload.recompute,):
        for parallelism in ("ddp", "fsdp") if gpus > 1 else ("ddp",):
            ways = _by_batch(replace(workload, recompute=recompute), precision, gpus, parallelism)
            fits = [way for way in ways if way[1].total <= usable_gb]
            if fits:
                found.append(fits[-1])
                break
    return found


def smallest(workload: Workload, precision: str, gpus: int) -> tuple[Workload, MemoryEstimate]:
    """The way that takes the least memory, whether it fits or not; see `fitting`."""
    recompute = workload.recompute is not False
    parallelism = "fsdp" if gpus > 1 else "ddp"
    return next(_by_batch(replace(workload, recompute=recompute), precision, gpus, parallelism))


def _by_batch(
    workload: Workload, precision: str, gpus: int, parallelism: str
) -> Iterator[tuple[Workload, MemoryEstimate]]:
    """The job with each batch that is worth while, the smallest first."""
    batch = workload.batch or 1
    enough = ENOUGH_TOKENS / workload.sequence_length if workload.is_transformer else ENOUGH_SAMPLES
    most = batch if workload.batch else min(enough, workload.total_samples / gpus / LEAST_STEPS)
    while True:
        tried = replace(workload, batch=batch)
        yield tried, estimate_memory(tried, precision, gpus, parallelism)
        batch *= 2
        if batch > most:
            return

"""What to take in place of a GPU that Google Cloud does not have, and the figures side by side that say why."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_pipelines.accelerators.catalog import Catalog, ElsewhereGpu, Gpu


@dataclass(frozen=True)
class Comparison:
    """One line of the table that sets a GPU beside what to take instead.

    Attributes:
        name: name of the GPU.
        memory_gb: GB.
        memory_bandwidth_gb_s: GB/s.
        bf16_tflops: dense tensor TFLOP/s.
        why: why it is in the table.
    """

    name: str
    memory_gb: int
    memory_bandwidth_gb_s: int
    bf16_tflops: float
    why: str


def substitutes(gpu: ElsewhereGpu, catalog: Catalog) -> list[Gpu]:
    """GPUs to take instead: what the catalog names, or the least with its memory and the least that also has its speed.

    GPUs that are ending, and those without bf16, are not proposed.
    """
    if gpu.instead:
        return [catalog.gpus[name] for name in gpu.instead]
    lasting = [other for other in catalog.gpus.values() if other.ends is None and other.supports_bf16]
    lasting.sort(key=lambda other: (other.bf16_tflops or 0.0, other.memory_gb))
    roomy = [other for other in lasting if other.memory_gb >= gpu.memory_gb]
    as_fast = [
        other
        for other in roomy
        if other.memory_bandwidth_gb_s >= gpu.memory_bandwidth_gb_s and (other.bf16_tflops or 0.0) >= gpu.bf16_tflops
    ]
    chosen = [*roomy[:1], *as_fast[:1]]
    return list({other.name: other for other in chosen}.values())


def compare(gpu: ElsewhereGpu, catalog: Catalog) -> tuple[Comparison, ...]:
    """The GPU and its substitutes side by side."""
    first = Comparison(
        gpu.name, gpu.memory_gb, gpu.memory_bandwidth_gb_s, gpu.bf16_tflops, f"not on Vertex AI: {gpu.kind}"
    )
    return (first, *(_beside(first, other) for other in substitutes(gpu, catalog)))


def _beside(asked: Comparison, other: Gpu) -> Comparison:
    flops = other.bf16_tflops or 0.0
    at_least = {
        "memory": other.memory_gb >= asked.memory_gb,
        "bandwidth": other.memory_bandwidth_gb_s >= asked.memory_bandwidth_gb_s,
        "bf16 speed": flops >= asked.bf16_tflops,
    }
    less = [what for what, enough in at_least.items() if not enough]
    why = f"less {' and '.join(less)}" if less else "at least its memory, bandwidth and bf16 speed"
    return Comparison(other.name, other.memory_gb, other.memory_bandwidth_gb_s, flops, why)

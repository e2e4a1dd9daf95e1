"""How long a training job takes: a roofline of computation, memory and network; each formula with its source."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_pipelines.accelerators.catalog import Gpu
from gpu_pipelines.accelerators.memory_estimate import MemoryEstimate
from gpu_pipelines.accelerators.workload import Workload

#: Model FLOPs utilization that is assumed where none is given. PaLM 540B reached 0.46 (Chowdhery et al. 2022,
#: arXiv:2204.02311, table 3), Llama 3 405B 0.38 to 0.43 (Grattafiori et al. 2024, arXiv:2407.21783, table 4).
ASSUMED_MFU = 0.35
#: Throughput that is left for each GPU when a trial is projected to more GPUs than it ran on. An assumption.
ASSUMED_SCALING = 0.9


@dataclass(frozen=True)
class TimeEstimate:
    """How long a job takes, hours.

    Attributes:
        computation: at the peak of the GPUs times the MFU.
        memory: to move weights, gradients and optimizer states through the GPUs' memory.
        network: to exchange weights and gradients between nodes; None where the bandwidth is not known.
        hours: the longest of these (the roofline: the others hide behind it), or the projection of a trial.
        limit: which one that is: `computation`, `memory`, `network` or `measured`.
        at_best: the lower end, where the estimate is a range; else the same as `hours`.
    """

    computation: float
    memory: float
    network: float | None
    hours: float
    limit: str
    at_best: float


def peak_tflops(gpu: Gpu, precision: str) -> float | None:
    """Dense peak of a GPU in a precision, TFLOP/s; None if it does not have it."""
    return {"bf16": gpu.bf16_tflops, "fp16": gpu.fp16_tflops, "fp32": gpu.fp32_tflops}[precision]


def flops_per_sample(workload: Workload) -> float:
    """Operations to train on one sample, forward and backward.

    A transformer takes 6 · parameters for each token (Kaplan et al. 2020, arXiv:2001.08361, 2.1) and
    12 · layers · width · sequence for its attention (Chowdhery et al. 2022, arXiv:2204.02311, appendix B). Of the 6,
    2 are the forward pass, 2 the gradients of the activations and 2 those of the weights; LoRA leaves the last out for
    the frozen weights. Recomputing activations repeats the forward pass. What is no transformer takes three times its
    forward pass, by the same count.
    """
    again = 1 if workload.recompute else 0
    if workload.flops_per_sample is not None:
        return workload.flops_per_sample * (3 + again)
    layers, width = workload.shape
    frozen = workload.lora_rank is not None
    parameters, trained = workload.parameters or 0.0, workload.trained_parameters
    dense = 4 * parameters + 6 * trained if frozen else 6 * parameters
    attention = 12 * layers * width * workload.sequence_length
    per_token = dense + attention + again * (2 * parameters + attention / 3)
    return per_token * workload.sequence_length


def estimate_time(
    workload: Workload,
    gpu: Gpu,
    precision: str,
    gpus: int,
    nodes: int,
    network_gbps: int | None,
    memory: MemoryEstimate,
    mfu: float,
) -> TimeEstimate:
    """A roofline (Williams et al. 2009, doi:10.1145/1498765.1498785) of one training job.

    Args:
        workload: the job; not a measured one.
        gpu: the GPU.
        precision: `bf16`, `fp16` or `fp32`; the GPU must have it.
        gpus: GPUs of all nodes together.
        nodes: number of nodes.
        network_gbps: network of each node, Gbit/s; None where it is not known.
        memory: the memory estimate, which says how the job is sharded.
        mfu: model FLOPs utilization, 0 to 1.
    """
    peak = peak_tflops(gpu, precision) or 0.0
    steps = workload.total_samples / (workload.batch * gpus)
    computation = workload.total_samples * flops_per_sample(workload) / (gpus * peak * 1e12 * mfu) / 3600
    moved = _moved_bytes(workload, precision, memory)
    through_memory = steps * moved / (gpu.memory_bandwidth_gb_s * 1e9) / 3600
    exchanged = _exchanged_bytes(workload, precision, nodes, memory.parallelism)
    network: float | None = 0.0
    if exchanged:
        network = steps * exchanged * 8 / (network_gbps * 1e9) / 3600 if network_gbps else None
    parts = {"computation": computation, "memory": through_memory, "network": network or 0.0}
    limit = max(parts, key=lambda name: parts[name])
    return TimeEstimate(computation, through_memory, network, parts[limit], limit, parts[limit])


def project_time(workload: Workload, measured: Gpu, measured_gpus: int, gpu: Gpu, gpus: int) -> TimeEstimate:
    """The time of a measured job on other GPUs.

    By the roofline a job gains no less than the smaller and no more than the larger of the ratios of peak and of memory
    bandwidth; the smaller one is taken, the larger one is `at_best`. On more GPUs than measured, each is assumed to
    keep `ASSUMED_SCALING` of its throughput.

    Args:
        workload: a measured job.
        measured: GPU of the trial.
        measured_gpus: number of them.
        gpu: GPU to project to.
        gpus: number of them, all nodes together.
    """
    ratios = (_best_peak(gpu) / _best_peak(measured), gpu.memory_bandwidth_gb_s / measured.memory_bandwidth_gb_s)
    per_gpu = (workload.measured_samples_per_second or 0.0) / measured_gpus
    kept = ASSUMED_SCALING if gpus > measured_gpus else 1.0
    slow, fast = (
        workload.total_samples / (per_gpu * ratio * gpus * kept) / 3600 for ratio in (min(ratios), max(ratios))
    )
    return TimeEstimate(slow, slow, None, slow, "measured", fast)


def _best_peak(gpu: Gpu) -> float:
    return gpu.bf16_tflops or gpu.fp16_tflops or gpu.fp32_tflops


def _moved_bytes(workload: Workload, precision: str, memory: MemoryEstimate) -> float:
    """Bytes that one step moves through the memory of one GPU: weights read in each pass, gradients written and read,
    optimizer states read and written. Activations are in the MFU."""
    width = 4 if precision == "fp32" else 2
    passes = 3 if workload.recompute else 2
    return passes * (workload.parameters or 0.0) * width + 2 * memory.gradients * 1e9 + 2 * memory.optimizer * 1e9


def _exchanged_bytes(workload: Workload, precision: str, nodes: int, parallelism: str) -> float:
    """Bytes that one step sends from each node.

    A ring all-reduce of the gradients sends 2 · (n − 1) / n of them (Patarasuk & Yuan 2009,
    doi:10.1016/j.jpdc.2008.09.002); full sharding gathers the weights twice and scatters the gradients once, 1.5 times
    the volume (Rajbhandari et al. 2020, arXiv:1910.02054, 7).
    """
    width = 4 if precision == "fp32" else 2
    share = (nodes - 1) / nodes
    gradients = workload.trained_parameters * width
    if parallelism == "ddp":
        return 2 * share * gradients
    return share * (2 * (workload.parameters or 0.0) * width + gradients)

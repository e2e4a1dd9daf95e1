"""How long a training job takes: computation, memory, links and network of each step; each formula with its source."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpu_pipelines.accelerators.catalog import Gpu, MachineType
from gpu_pipelines.accelerators.memory_estimate import MemoryEstimate
from gpu_pipelines.accelerators.workload import Workload

#: Share of a GPU's MFU (`Gpu.mfu`, of transformers) that other models are assumed to reach. NeMo trains ViT-g/14 at 693
#: images/s on 8 A100 and at 1,428 on 8 H100, 0.43 and 0.28 of the peak, where transformers reach 0.55 and 0.40.
#: Source: https://docs.nvidia.com/nemo-framework/user-guide/latest/, Vision Transformer, Performance.
OTHER_MODELS = 0.75
#: Throughput that is left for each GPU when a trial is projected to twice as many GPUs. An assumption.
KEPT_WHEN_DOUBLED = 0.95
#: Share of the shorter parts of a step that does not hide behind the longest one. An assumption; with it, Llama 3.1 8B
#: keeps 98 % of its throughput from 8 to 128 H100, where torchtitan measured 97 % (5,762 and 5,605 tokens/s/GPU).
EXPOSED = 0.1
#: Share of a link's or a network's nominal bandwidth that collectives reach. An assumption.
LINK_EFFICIENCY = {"nvlink": 0.75, "pcie": 0.5, "network": 0.75}
#: Least duration of an optimizer step, seconds: a thousand kernels at 5 µs for each launch. An assumption.
SHORTEST_STEP = 0.005
#: Hours from the request to the first step, in which the machine is billed already: its image, the processes, the data;
#: and what each further machine adds. An assumption.
START_HOURS, START_HOURS_PER_NODE = 1 / 6, 1 / 60
#: How often a Spot machine is assumed to be taken away, per hour, and the work that is lost with it, hours.
INTERRUPTIONS_PER_HOUR, LOST_HOURS = 1 / 24, 1 / 8


@dataclass(frozen=True)
class TimeEstimate:
    """How long a job takes, hours.

    Attributes:
        computation: at the peak of the GPUs times the MFU.
        memory: to move weights, gradients and optimizer states through the GPUs' memory.
        links: to exchange weights and gradients between the GPUs of a machine.
        network: to exchange them between nodes; None if the bandwidth is not known.
        launches: of the steps, if each took no longer than the launch of its kernels.
        start: from the request to the first step.
        hours: all of it.
        limit: the longest part: `computation`, `memory`, `links`, `network` or `launches`; or `measured`.
        at_best: the lower end, if the estimate is a range; else the same as `hours`.
    """

    computation: float
    memory: float
    links: float
    network: float | None
    launches: float
    start: float
    hours: float
    limit: str
    at_best: float


def start_hours(nodes: int) -> float:
    """Hours from the request to the first step on that many machines."""
    return START_HOURS + START_HOURS_PER_NODE * (nodes - 1)


def spot_factor(nodes: int) -> float:
    """How much longer a job takes on Spot machines than undisturbed; infinity if it would hardly make progress.

    A machine that is taken away costs the work since the last checkpoint and a new start of all machines.

    Args:
        nodes: number of machines.
    """
    lost = nodes * INTERRUPTIONS_PER_HOUR * (LOST_HOURS + start_hours(nodes))
    return 1 / (1 - lost) if lost < 1 else math.inf


def peak_tflops(gpu: Gpu, precision: str) -> float | None:
    """Dense peak of a GPU in a precision, TFLOP/s; None if it does not have it."""
    return {"bf16": gpu.bf16_tflops, "fp16": gpu.fp16_tflops, "fp32": gpu.fp32_tflops}[precision]


def assumed_mfu(workload: Workload, gpu: Gpu) -> float:
    """MFU to use if the user gives none, 0 to 1."""
    return gpu.mfu if workload.is_transformer else gpu.mfu * OTHER_MODELS


def flops_per_sample(workload: Workload) -> float:
    """Operations to train on one sample, forward and backward; those that MFU counts.

    A transformer takes 6 · parameters for each token, of experts those that it passes through (Kaplan et al. 2020,
    arXiv:2001.08361, 2.1), and 12 · layers · width · sequence for its attention (Chowdhery et al. 2022,
    arXiv:2204.02311, appendix B). Of the 6,
    2 are the forward pass, 2 the gradients of the activations and 2 those of the weights; LoRA leaves the last out for
    the frozen weights. Other models take three times their forward pass, by the same count. Operations that
    recompute activations do not count: MFU is of the model's operations alone (the same appendix), and published runs
    with and without recomputation reach about the same MFU (LLM Foundry's tables). The table of an encoder takes none,
    as rows are only looked up in it; that of a language model is counted, as in the papers.
    """
    if workload.flops_per_sample is not None:
        return workload.flops_per_sample * 3
    layers, width = workload.shape
    frozen = workload.lora_rank is not None
    looked_up = workload.table if workload.encoder and workload.hidden_size else 0.0
    parameters, trained = max(workload.used_parameters - looked_up, 0.0), workload.trained_parameters
    dense = 4 * parameters + 6 * trained if frozen else 6 * parameters
    return (dense + 12 * layers * width * workload.sequence_length) * workload.sequence_length


def estimate_time(
    workload: Workload,
    gpu: Gpu,
    precision: str,
    gpus: int,
    nodes: int,
    machine: MachineType | None,
    memory: MemoryEstimate,
    mfu: float,
) -> TimeEstimate:
    """The time of one training job: of each step the longest part, and a share of the others that does not overlap.

    The parts are those of a roofline (Williams et al. 2009, doi:10.1145/1498765.1498785), with the links between the
    GPUs of a machine and the network between machines as further roofs.

    Args:
        workload: the job, with its batch; not a measured one.
        gpu: the GPU.
        precision: `bf16`, `fp16` or `fp32`; the GPU must have it.
        gpus: GPUs of all nodes together.
        nodes: number of nodes.
        machine: the machine of each node, for its network; None if it is not known.
        memory: the memory estimate, which says how the job is sharded.
        mfu: model FLOPs utilization, 0 to 1.
    """
    peak = peak_tflops(gpu, precision) or 0.0
    micro_steps = workload.total_samples / ((workload.batch or 1) * gpus)
    steps = workload.steps or micro_steps
    # Sharded weights are gathered for each micro-batch; gradients that are whole wait for the optimizer step.
    exchanges = steps if memory.parallelism == "ddp" else max(steps, micro_steps)
    per_node = gpus // nodes
    link = gpu.link_gb_s * LINK_EFFICIENCY["nvlink" if gpu.nvlink else "pcie"]
    moved = micro_steps * _passed_bytes(workload, precision) + steps * 2e9 * (memory.gradients + memory.optimizer)
    within = exchanges * exchanged_bytes(workload, precision, per_node, memory.parallelism)
    between = exchanges * exchanged_bytes(workload, precision, nodes, memory.parallelism)
    if memory.parallelism == "hsdp":  # replicas of a shard all-reduce its gradient
        between = exchanges * exchanged_bytes(workload, precision, nodes, "ddp") / per_node
    gbps = machine.network_with(gpu.name, per_node) if machine else None
    seconds = {
        "computation": workload.total_samples * flops_per_sample(workload) / (gpus * peak * 1e12 * mfu),
        "memory": moved / (gpu.memory_bandwidth_gb_s * 1e9),
        "links": within / (link * 1e9),
        "network": between * 8 / (gbps * 1e9 * LINK_EFFICIENCY["network"]) if gbps else 0.0,
        "launches": steps * SHORTEST_STEP,
    }
    hours = {name: value / 3600 for name, value in seconds.items()}
    limit = max(hours, key=lambda name: hours[name])
    start = start_hours(nodes)
    total = start + hours[limit] + EXPOSED * (sum(hours.values()) - hours[limit])
    network = hours["network"] if gbps or not between else None
    return TimeEstimate(
        hours["computation"], hours["memory"], hours["links"], network, hours["launches"], start, total, limit, total
    )


def project_time(
    workload: Workload, measured: Gpu, measured_gpus: int, gpu: Gpu, gpus: int, nodes: int = 1
) -> TimeEstimate:
    """The time of a measured job on other GPUs.

    By the roofline a job gains no less than the smaller and no more than the larger of the ratios of peak and of memory
    bandwidth; the smaller one is taken, the larger one is `at_best`. Each time that the number of GPUs doubles, each is
    assumed to keep `KEPT_WHEN_DOUBLED` of its throughput.

    Args:
        workload: a measured job.
        measured: GPU of the trial.
        measured_gpus: number of them.
        gpu: GPU to project to.
        gpus: number of them, all nodes together.
        nodes: number of nodes.
    """
    ratios = (_best_peak(gpu) / _best_peak(measured), gpu.memory_bandwidth_gb_s / measured.memory_bandwidth_gb_s)
    per_gpu = (workload.measured_samples_per_second or 0.0) / measured_gpus
    kept = KEPT_WHEN_DOUBLED ** max(0.0, math.log2(gpus / measured_gpus))
    launches = (workload.steps or 0.0) * SHORTEST_STEP / 3600
    start = start_hours(nodes)
    slow, fast = (
        workload.total_samples / (per_gpu * ratio * gpus * kept) / 3600 for ratio in (min(ratios), max(ratios))
    )
    limit = "measured" if slow > launches else "launches"
    return TimeEstimate(
        slow, slow, 0.0, None, launches, start, start + max(slow, launches), limit, start + max(fast, launches)
    )


def _best_peak(gpu: Gpu) -> float:
    return gpu.bf16_tflops or gpu.fp16_tflops or gpu.fp32_tflops


def _passed_bytes(workload: Workload, precision: str) -> float:
    """Bytes of weights that the passes over one micro-batch read in each GPU. Activations are in the MFU."""
    width = 4 if precision == "fp32" else 2
    return (3 if workload.recompute else 2) * (workload.parameters or 0.0) * width


def exchanged_bytes(workload: Workload, precision: str, members: int, parallelism: str) -> float:
    """Bytes that each of some GPUs, or of some nodes, sends to the others in one exchange.

    A ring all-reduce of the gradients sends 2 · (n − 1) / n of them (Patarasuk & Yuan 2009,
    doi:10.1016/j.jpdc.2008.09.002); full sharding gathers the weights twice and scatters the gradients once, 1.5 times
    the volume (Rajbhandari et al. 2020, arXiv:1910.02054, 7).

    Args:
        workload: the job.
        precision: `bf16`, `fp16` or `fp32`.
        members: the GPUs of a machine, or the nodes.
        parallelism: `ddp`; or `fsdp`, and `hsdp` within a node.
    """
    width = 4 if precision == "fp32" else 2
    share = (members - 1) / members
    gradients = workload.trained_parameters * width
    if parallelism == "ddp":
        return 2 * share * gradients
    return share * (2 * (workload.parameters or 0.0) * width + gradients)

"""How much memory of each GPU a training job needs, broken down; each formula with its source.

Everything is in GB of 10⁹ bytes; a GPU's nominal memory is taken as the same, which errs on the safe side by some
percent on the large ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_pipelines.accelerators.workload import OPTIMIZER_BYTES, Workload

#: Bytes of a weight, frozen or not, and of the gradient of a trained one: both stay in fp32 in every precision, because
#: mixed precision is autocast's (gpu_pipelines/training/precision.py).
BYTES_PER_WEIGHT, BYTES_PER_GRADIENT = 4, 4
#: What the training engine chooses between DDP and FSDP by: a trained parameter with AdamW, and a frozen one.
BYTES_PER_TRAINED = BYTES_PER_WEIGHT + BYTES_PER_GRADIENT + OPTIMIZER_BYTES["adamw"]
BYTES_PER_FROZEN = BYTES_PER_WEIGHT
#: CUDA context, library workspaces and NCCL buffers, GB. An assumption.
RUNTIME_GB = 1.5
#: Bytes in fp32 that a forward pass of what is no transformer keeps for each of its operations, at most: 0.0105 for
#: ResNet-50, 0.0123 for ConvNeXt-T and Swin-T; ViT-B/16 keeps 0.0035. `python benchmarks/activations.py` counts them.
ACTIVATION_BYTES_PER_FLOP = 0.0125
#: The part of a GPU's memory that a job can plan with; the rest goes to fragmentation and peaks. An assumption.
USABLE = 0.9


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of one GPU, GB.

    Attributes:
        parallelism: `ddp` (every GPU holds everything) or `fsdp` (weights, gradients and optimizer are sharded).
        weights: all weights, frozen ones too.
        gradients: gradients of the trained parameters.
        optimizer: the optimizer's moments.
        activations: what the forward pass keeps for the backward pass.
        gathered: weights and gradients of the layers at work, whole, while the rest is sharded.
        runtime: CUDA context, workspaces, NCCL.
    """

    parallelism: str
    weights: float
    gradients: float
    optimizer: float
    activations: float
    gathered: float
    runtime: float = RUNTIME_GB

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.gathered + self.runtime

    def told(self) -> str:
        """The parts that are worth naming, GB."""
        parts = ("weights", "gradients", "optimizer", "activations", "gathered", "runtime")
        return ", ".join(f"{part} {getattr(self, part):.1f}" for part in parts if getattr(self, part) >= 0.05)


def estimate_memory(workload: Workload, precision: str, gpus: int, parallelism: str) -> MemoryEstimate:
    """The memory that one GPU needs.

    Weights, gradients and optimizer take 4 + 4 + 8 bytes for each trained parameter, because the engine keeps all of
    them in fp32 and casts where it computes: as many as the 2 + 2 + 12 of training with an fp32 copy. Sharding divides
    all three by the number of GPUs (Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054, 3.1 and 5).

    Args:
        workload: the job; not a measured one.
        precision: `bf16`, `fp16` or `fp32`.
        gpus: GPUs of all nodes together.
        parallelism: `ddp` or `fsdp`.
    """
    width = 4 if precision == "fp32" else 2
    shards = gpus if parallelism == "fsdp" else 1
    parameters, trained = workload.parameters or 0.0, workload.trained_parameters
    frozen = parameters if workload.lora_rank is not None else 0.0
    layers, _ = workload.shape
    # FSDP holds the layer it computes and prefetches the next, and the whole gradient of one before it is scattered.
    gathered = (2 * parameters + trained) / layers * width if parallelism == "fsdp" else 0.0
    return MemoryEstimate(
        parallelism=parallelism,
        weights=(frozen + trained) * BYTES_PER_WEIGHT / shards / 1e9,
        gradients=trained * BYTES_PER_GRADIENT / shards / 1e9,
        optimizer=trained * OPTIMIZER_BYTES[workload.optimizer] / shards / 1e9,
        activations=activation_bytes(workload, width) / 1e9,
        gathered=gathered / 1e9,
    )


def host_memory_gb(workload: Workload) -> float:
    """The main memory that one machine needs before its GPUs have the model, GB.

    Rank 0 builds all of the model in fp32, whatever is trained, and sends each GPU its part; a fifth is for the rest.

    Args:
        workload: the job; not a measured one.
    """
    return 1.2 * (workload.parameters or 0.0) * BYTES_PER_WEIGHT / 1e9


def activation_bytes(workload: Workload, width: int) -> float:
    """Bytes of activations of one GPU.

    A transformer layer keeps 34 · s · b · h bytes in 16 bits when the attention scores are not stored (FlashAttention
    or selective recomputation), and 2 · s · b · h when the layer is recomputed; the logits take 4 · s · b · v in fp32
    (Korthikanti et al. 2022, arXiv:2205.05198, equations 2 and 6 and section 4.3). s is the sequence length, b the
    batch, h the width, v the vocabulary. The layer being recomputed is held whole. For what is no transformer, a trial
    has counted it, or the rule of thumb of `ACTIVATION_BYTES_PER_FLOP` gives a bound.
    """
    batch = workload.batch or 1
    counted = workload.activation_bytes_per_sample
    if counted is None and workload.flops_per_sample is not None:
        counted = workload.flops_per_sample * ACTIVATION_BYTES_PER_FLOP
    if counted is not None:
        return counted * batch * width / 4
    layers, hidden = workload.shape
    tokens = workload.sequence_length * batch
    one_layer = 34 * tokens * hidden
    kept = layers * 2 * tokens * hidden + one_layer if workload.recompute else layers * one_layer
    return kept * width / 2 + 4 * tokens * workload.vocabulary

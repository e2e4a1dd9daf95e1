"""How a model is placed on the processes: whole on each (DDP) or sharded (FSDP2)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from gpu_pipelines.accelerators.memory_estimate import BYTES_PER_FROZEN, BYTES_PER_TRAINED
from gpu_pipelines.training.precision import DTYPES

#: Part of a GPU's memory that the above may take; the rest is for activations. An assumption.
SHARE_FOR_STATE = 0.6


def choose_parallelism(asked: str, trained: int, frozen: int, device_memory: int | None) -> str:
    """`ddp` where weights, gradients and optimizer leave room for activations on one device, else `fsdp`.

    Args:
        asked: ddp, fsdp or auto.
        trained: number of trained parameters.
        frozen: number of frozen ones.
        device_memory: bytes of one GPU; None on CPUs, where auto is always ddp.
    """
    if asked != "auto":
        return asked
    needed = trained * BYTES_PER_TRAINED + frozen * BYTES_PER_FROZEN
    return "fsdp" if device_memory is not None and needed > SHARE_FOR_STATE * device_memory else "ddp"


def recompute_activations(model: nn.Module, blocks: list[nn.Module]) -> list[nn.Module]:
    """Makes the given layers recompute their activations in the backward pass; returns what stands in their place."""
    wrapped = {id(block): checkpoint_wrapper(block) for block in blocks}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in wrapped and parent is not wrapped[id(child)]:
                parent.register_module(name, wrapped[id(child)])
    return [wrapped[id(block)] for block in blocks]


def place(
    model: nn.Module, blocks: list[nn.Module], parallelism: str, precision: str, device: torch.device
) -> nn.Module:
    """Moves a model to the device and places it on all processes.

    Args:
        model: the same bits in every process, on the CPU.
        blocks: its repeated layers, the units of sharding.
        parallelism: ddp or fsdp.
        precision: bf16, fp16 or fp32; under fsdp weights are gathered in it, gradients are reduced in fp32.
        device: this process's device.

    Returns:
        What the forward pass is to be called on.
    """
    if parallelism == "ddp":
        return DistributedDataParallel(model.to(device), gradient_as_bucket_view=True)
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    if precision != "fp32":
        policy = MixedPrecisionPolicy(param_dtype=DTYPES[precision], reduce_dtype=torch.float32)
    for block in blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model.to(device)


def without_all_reduce(parallel: nn.Module, last: bool) -> AbstractContextManager[object]:
    """The context of one micro-batch: gradients are all-reduced after the last of a step only."""
    if isinstance(parallel, DistributedDataParallel):
        return nullcontext() if last else parallel.no_sync()
    if isinstance(parallel, FSDPModule):
        parallel.set_requires_gradient_sync(last)
    return nullcontext()

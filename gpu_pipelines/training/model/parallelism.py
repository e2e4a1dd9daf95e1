"""How a model is placed on the processes: whole on each (DDP), or sharded over all or those of a node (FSDP2)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from gpu_pipelines.training.model.outer_layers import table_and_head
from gpu_pipelines.training.model.precision import DTYPES

#: Part of a GPU's memory that weights, gradients and optimizer may take; the rest is for activations. An assumption.
SHARE_FOR_STATE = 0.6
REPLICATE, SHARD = "dp_replicate", "dp_shard"
#: Experts, and those of their matrices.
_DIMENSIONS_OF_EXPERTS = 3


def choose_parallelism(asked: str, needed: float, device_memory: int | None, nodes: int = 1, per_node: int = 1) -> str:
    """The least sharding that leaves room for activations.

    Args:
        asked: ddp, hsdp, fsdp or auto.
        needed: bytes of weights, gradients and optimizer together.
        device_memory: bytes of one GPU; None on CPUs, where auto is always ddp.
        nodes: of the training.
        per_node: processes of each.

    Returns:
        `ddp` if weights, gradients and optimizer fit one device; `hsdp` if they fit those of a node, and there
        are several nodes; else `fsdp`.
    """
    if asked == "hsdp" and nodes == 1:
        return "fsdp"  # the same, without replicas
    if asked != "auto" or device_memory is None:
        return "ddp" if asked == "auto" else asked
    room = SHARE_FOR_STATE * device_memory
    if needed <= room:
        return "ddp"
    return "hsdp" if nodes > 1 and needed <= room * per_node else "fsdp"


def least_memory(device: torch.device) -> int | None:
    """Bytes of the smallest GPU of this training, the same on all processes; None on CPUs.

    Args:
        device: of this process.
    """
    if device.type != "cuda":
        return None
    least = torch.tensor(torch.cuda.mem_get_info(device)[1])
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return int(least)


def nodes_of_training() -> tuple[int, int]:
    """Number of nodes, and of processes of each, as the launcher has told them."""
    processes = dist.get_world_size()
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    return processes // per_node, per_node


def mesh_of(parallelism: str, device_type: str, nodes: int, per_node: int) -> DeviceMesh | None:
    """The mesh of processes for FSDP2: one dimension for shards, one for replicas; None for DDP.

    Args:
        parallelism: ddp, hsdp or fsdp.
        device_type: cuda or cpu.
        nodes: of the training.
        per_node: processes of each.
    """
    if parallelism == "ddp":
        return None
    shape = (nodes, per_node) if parallelism == "hsdp" else (1, nodes * per_node)
    mesh = init_device_mesh(device_type, shape, mesh_dim_names=(REPLICATE, SHARD))
    return mesh if parallelism == "hsdp" else mesh[SHARD]


def built_once(build: Callable[[], nn.Module]) -> nn.Module:
    """Builds a model with its weights on rank 0, and without them on the others, which get them when it is placed.

    Args:
        build: the same in every process. A model that cannot be built without weights is built with them.
    """
    if dist.get_rank() == 0:
        return build()
    try:
        with torch.device("meta"):
            return build()
    except (RuntimeError, NotImplementedError):  # it looks into a weight, say
        return build()


def place(
    model: nn.Module, blocks: list[nn.Module], mesh: DeviceMesh | None, precision: str, device: torch.device
) -> nn.Module:
    """Places a model on all processes, with the weights that it has on rank 0.

    Args:
        model: on the CPU, or on the meta device, from `built_once`.
        blocks: its repeated layers, the units of sharding, in the order in which they are called.
        mesh: from `mesh_of`.
        precision: bf16, fp16 or fp32; weights are gathered in it where they are sharded, gradients reduced in fp32.
        device: this process's device.

    Returns:
        The module to call for the forward pass.
    """
    if mesh is None:
        # Its constructor sends what rank 0 has.
        return replicated(_on(model, device))
    is_source = dist.get_rank() == 0
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()} if is_source else {}
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()} if is_source else {}
    shard(emptied(model, torch.device("meta")), blocks, mesh, precision)
    emptied(model, device)
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    for name, buffer in model.named_buffers():  # some are in no state dict
        if is_source:
            buffer.copy_(buffers[name])
        dist.broadcast(buffer, src=0)
    return model


def replicated(model: nn.Module, *, may_lack: bool = False) -> DistributedDataParallel:
    """A model that each process holds whole, and whose gradients are summed over all.

    Args:
        model: on the device of this process. All get the weights of rank 0.
        may_lack: whether weights may have no gradient, which takes time to find out in each step.
    """
    return DistributedDataParallel(model, gradient_as_bucket_view=True, find_unused_parameters=may_lack)


def shard(model: nn.Module, blocks: list[nn.Module], mesh: DeviceMesh, precision: str) -> None:
    """Shards a model over a mesh, in place: block by block, embedding and head separately.

    The next block is gathered while one computes, in both directions. Layers that normalize by batch statistics are
    gathered in fp32, as autocast leaves them: PyTorch wants their weights in the precision of the statistics.

    Args:
        model: on any device.
        blocks: as `place` takes them.
        mesh: from `mesh_of`.
        precision: as `place` takes it.
    """
    in_fp32 = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    policy = in_fp32 if precision == "fp32" else replace(in_fp32, param_dtype=DTYPES[precision])
    shards = mesh.size(mesh.ndim - 1)
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    # What is within another unit comes before it: the embedding of a BERT is part of its first block.
    for unit in (*norms, *_outer_units(model), *blocks, model):
        fully_shard(
            unit,
            mesh=mesh,
            mp_policy=in_fp32 if isinstance(unit, _BatchNorm) else policy,
            shard_placement_fn=lambda weight: sharded_dimension(weight, shards),
        )
    for block, following in pairwise(blocks):
        if isinstance(block, FSDPModule) and isinstance(following, FSDPModule):
            block.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([block])


def sharded_dimension(weight: torch.Tensor, shards: int) -> Shard | None:
    """The dimension along which a weight is cut; None for the first one.

    If there are fewer experts than shards, their weights are cut along the next dimension. Along the first,
    FSDP2 would pad them to as many experts as shards, in memory and in communication.

    Args:
        weight: of the model.
        shards: their number.
    """
    is_of_experts = weight.ndim == _DIMENSIONS_OF_EXPERTS and weight.shape[0] < shards
    return Shard(1) if is_of_experts and weight.shape[1] % shards == 0 else None


def _outer_units(model: nn.Module) -> list[nn.Module]:
    """Embedding and head, to be sharded for themselves, but for one whose weight another module has as well."""
    holders = Counter(id(weight) for module in model.modules() for weight in module._parameters.values())
    units = [unit for unit in table_and_head(model) if isinstance(unit, (nn.Embedding, nn.Linear))]
    return [unit for unit in units if holders[id(unit.weight)] == 1]


def _on(model: nn.Module, device: torch.device) -> nn.Module:
    return emptied(model, device) if any(weight.is_meta for weight in model.parameters()) else model.to(device)


def emptied(model: nn.Module, device: torch.device) -> nn.Module:
    """Gives a model empty tensors on a device; tied weights stay tied."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                places.setdefault(id(weight), []).append((module, name))
    model.to_empty(device=device)
    for (first, name), *others in places.values():
        for module, other in others:
            module._parameters[other] = first._parameters[name]
    return model


def before_gradients_are_awaited(loss: torch.Tensor, work: Callable[[], None]) -> None:
    """Lets the backward pass of a loss call something when it has computed all gradients, and they are being summed.

    DDP waits for the sums in a callback of that pass. Callbacks are called in the order in which they were queued, and
    DDP queues its own with the last gradient.

    Args:
        loss: before its backward pass.
        work: takes no gradients.
    """
    loss.register_hook(lambda _: torch.autograd.Variable._execution_engine.queue_callback(work))


def without_all_reduce(parallel: nn.Module, last: bool) -> AbstractContextManager[object]:
    """The context of one micro-batch: DDP reduces gradients after the last of a step only.

    A sharded model reduces and scatters those of each: what is kept between them is a shard, not the whole. Replicas of
    it, which are on other nodes, sum their shards after the last one.
    """
    if isinstance(parallel, FSDPModule):
        parallel.set_requires_all_reduce(last)
    if isinstance(parallel, DistributedDataParallel) and not last:
        return parallel.no_sync()
    return nullcontext()

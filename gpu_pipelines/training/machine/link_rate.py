"""How fast the nodes of a training sum gradients, measured before it begins: a slow network is paid by the hour."""

from __future__ import annotations

import os
import statistics
import time

import torch
import torch.distributed as dist

from gpu_pipelines.accelerators import AcceleratorPlan, plan
from gpu_pipelines.step_environment import ACCELERATOR

#: Bytes that are summed: with so many NCCL comes to its full rate. Gloo is there for rehearsals, over any network.
_BYTES = {"cuda": 256 << 20, "cpu": 4 << 20}
_WARM_UPS, _TIMES = 2, 5
#: Less of the rate on paper than this is no matter of efficiency: something is not in use that should be.
_LEAST_SHARE = 0.25


def say_link_rate(device: torch.device, nodes: int) -> None:
    """Prints, on rank 0 of several nodes, how fast they sum gradients together; all processes call it.

    Args:
        device: of this process.
        nodes: how many machines there are.
    """
    if nodes == 1:
        return
    rate = all_reduce_rate(device)
    if dist.get_rank() == 0:
        asked = os.environ.get(ACCELERATOR, "")
        print(told(rate, nodes, plan(asked) if asked and device.type == "cuda" else None), flush=True)


def all_reduce_rate(device: torch.device) -> float:
    """Bytes per second of a node's network that an all-reduce over all processes amounts to.

    It is what nccl-tests calls bus bandwidth: 2 (n - 1) / n bytes for each byte that n processes sum, over the median
    time. A ring passes through each node's network once, so that this is the rate of the slowest of them. Source:
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md.

    Args:
        device: of this process.
    """
    tensor = torch.zeros(_BYTES[device.type] // 4, device=device)
    seconds = []
    for _ in range(_WARM_UPS + _TIMES):
        began = time.perf_counter()
        dist.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    world = dist.get_world_size()
    return 2 * (world - 1) / world * tensor.nbytes / statistics.median(seconds[_WARM_UPS:])


def told(rate: float, nodes: int, planned: AcceleratorPlan | None) -> str:
    """The rate, and if it should be higher, what to check.

    Args:
        rate: bytes per second, from `all_reduce_rate`.
        nodes: how many machines there are.
        planned: plan of the machines; None if it is not known.
    """
    said = f"all-reduce over {nodes} nodes: {rate / 1e9:.3g} GB/s"
    if planned is None or not planned.network_gbps or planned.machine is None:
        return said
    said += f" of {planned.network_gbps / 8:.4g} GB/s, the network of {planned.machine.name}"
    if rate * 8 / 1e9 >= _LEAST_SHARE * planned.network_gbps:
        return said
    if planned.machine.gpudirect:
        look = f"whether NCCL uses {planned.machine.gpudirect}: NCCL_DEBUG=INFO says which network plug-in it loaded"
    else:
        look = "whether the nodes are in one zone and nothing else uses their network"
    return f"{said}\nwarning: that is less than a quarter; look {look}. The training goes on."

"""The buckets in which DDP sums gradients, chosen before the first step instead of after it.

In a bucket, the place of a gradient is the order in which the processes add it up: all-reduce begins each part of a
bucket at another process. DDP puts the gradients into other buckets after its first backward pass, when it has seen in
which order they come. A training that continues would begin with the first buckets again, where one that was never
interrupted has the second ones, and would differ from it in the last bit. The sum of two has no order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def settle_buckets(parallel: nn.Module, loss: Callable[[], torch.Tensor], check: Callable[[], object]) -> None:
    """Shows DDP the order of the gradients by a backward pass that leaves nothing else behind.

    Args:
        parallel: what the forward pass is called on; nothing is done where that is not DDP's.
        loss: of any batch, through `parallel`.
        check: called when there are gradients; may raise.
    """
    if not isinstance(parallel, DistributedDataParallel) or dist.get_world_size() < 3:
        return
    was_training = parallel.training
    before = [(buffer, buffer.clone()) for buffer in parallel.buffers()]
    parallel.train()
    loss().backward()
    check()
    parallel.zero_grad()
    parallel.train(was_training)
    with torch.no_grad():
        for buffer, content in before:
            buffer.copy_(content)

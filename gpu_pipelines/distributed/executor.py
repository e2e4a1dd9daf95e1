"""Chooses the executor for work in pieces: processes of this machine, or a Ray cluster."""

from __future__ import annotations

from gpu_pipelines.distributed.pieces import Executor
from gpu_pipelines.distributed.process_executor import ProcessExecutor
from gpu_pipelines.distributed.ray_executor import RayExecutor


def executor_for(address: str, processes: int = 0) -> Executor:
    """The executor for an address.

    Args:
        address: empty for processes of this machine; else the address of a Ray cluster, as for `RayExecutor`.
        processes: number of processes on this machine; 0 for one on each core.

    Raises:
        UserError: Ray is not installed, or no cluster can be used at the address.
    """
    return RayExecutor(address) if address else ProcessExecutor(processes)

"""How busy what a training computes on is: GPUs by NVML, processes on CPUs by their time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gpu_pipelines.distributed.idleness import Idleness
from gpu_pipelines.distributed.members import Cluster
from gpu_pipelines.distributed.processes import below
from gpu_pipelines.training.machine.local_devices import Devices


def idleness_of(minutes: float, devices: Devices, cluster: Cluster, gpus: int = 0) -> Idleness | None:
    """What watches the devices of this node; None where they may do nothing.

    Args:
        minutes: after so long they are idle; 0 for never.
        devices: what the processes train on.
        cluster: the nodes.
        gpus: that a single process uses; 0 where each process has one.
    """
    if not minutes:
        return None
    first, node = cluster.node_rank * devices.processes, cluster.node_rank
    names = [f"rank {first + number}" for number in range(devices.processes)]
    if devices.kind != "cuda":
        return Idleness(minutes, names, CpuShares())
    if gpus:
        names = [f"GPU {number} of node {node}" for number in range(gpus)]
    return Idleness(minutes, names, GpuUtilization(len(names)), CpuShares())


class GpuUtilization:
    """The GPUs that this process sees, by NVML: per cent of the last second, or a part of it, with a kernel running.

    Args:
        gpus: how many.
    """

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._is_unknown = False

    def __call__(self, processes: Sequence[Any]) -> list[float] | None:
        """See `gpu_pipelines.distributed.idleness.Utilization`; a reason why it is not known is said once."""
        if self._is_unknown:
            return None
        import torch

        try:
            return [float(torch.cuda.utilization(number)) for number in range(self._gpus)]
        except Exception as error:  # of the driver, of NVML, or of a GPU that is partitioned: none may end a training
            self._is_unknown = True
            why = str(error) or type(error).__name__
            print(f"warning: idle_stop does not watch the GPUs, whose utilization is not known: {why}", flush=True)
            return None


class CpuShares:
    """The processes with all that they have started, by the time that they had of a core; above 100 of several."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, float]] = {}

    def __call__(self, processes: Sequence[Any]) -> list[float] | None:
        """See `gpu_pipelines.distributed.idleness.Utilization`."""
        now, shares, seen = time.monotonic(), [], {}
        for process in sorted(processes, key=_begun):
            seconds = _cpu_seconds(process)
            at, before = self._before.get(process.pid, (now, 0.0))
            seen[process.pid] = now, seconds
            # One that has just come has not been looked at yet; of one whose children have ended their time is gone.
            shares.append(100 * max(0.0, seconds - before) / (now - at) if now > at else 100.0)
        self._before = seen
        return shares or None


def _begun(process: Any) -> tuple[float, int]:
    """Sorts processes as they were started, which is the order of their ranks."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        return float(process.create_time()), int(process.pid)
    return 0.0, int(process.pid)


def _cpu_seconds(process: Any) -> float:
    import psutil

    total = 0.0
    for each in (process, *below(process)):
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            total += times.user + times.system
    return total

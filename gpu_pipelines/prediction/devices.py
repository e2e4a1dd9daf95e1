"""The workers of a prediction and their devices: the GPUs or cores of this machine, or those of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from gpu_pipelines.distributed.executor import executor_for
from gpu_pipelines.distributed.pieces import Executor, Needs
from gpu_pipelines.errors import UserError
from gpu_pipelines.prediction.settings import AUTO, GPU
from gpu_pipelines.processors import cores
from gpu_pipelines.serving.predictors import gpus_here
from gpu_pipelines.training.machine.local_devices import local_devices

#: Cores of a worker without a GPU: more do not make a batch faster, and each worker holds the model.
_CORES_OF_A_WORKER = 8
#: On a Ray cluster, which starts a worker wherever it finds this much.
_RAY_WITH_GPU, _RAY_ON_CPU = Needs(2, 1), Needs(1)


class Workers(NamedTuple):
    """The workers of a prediction.

    Attributes:
        executor: gives them their pieces.
        needs: the cores and GPUs of each worker.
    """

    executor: Executor
    needs: Needs

    @property
    def threads(self) -> int:
        """Threads of each worker."""
        return max(1, int(self.needs.cpus))


@contextmanager
def workers_for(address: str, device: str) -> Iterator[Workers]:
    """The workers at an address; they end with the block.

    Args:
        address: the address of a Ray cluster; empty for this machine.
        device: `auto`, `cpu` or `gpu`.

    Raises:
        UserError: there is no such cluster, or it lacks the GPUs that the step was placed on.
    """
    with executor_for(address) as executor:
        yield Workers(executor, _needs_on_ray(device) if address else _needs_here(device))


def _needs_here(device: str) -> Needs:
    gpus = gpus_here()
    if device == AUTO:
        gpus = gpus if local_devices(gpus).kind == "cuda" else 0
    elif device != GPU:
        gpus = 0
    elif not gpus:
        raise UserError("device is gpu, but PyTorch sees no GPU here.", "Give device=cpu, or auto.")
    if not gpus:
        return Needs(min(cores(), _CORES_OF_A_WORKER))
    return Needs(max(1, cores() // gpus), 1)


def _needs_on_ray(device: str) -> Needs:
    import ray

    resources: dict[str, Any] = ray.cluster_resources()
    has_gpus = device == GPU or (device == AUTO and resources.get("GPU", 0) >= 1)
    return _RAY_WITH_GPU if has_gpus else _RAY_ON_CPU

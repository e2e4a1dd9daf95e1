"""From the name that NVIDIA's driver gives a GPU to the names of the catalog."""

from __future__ import annotations

from gpu_pipelines.accelerators.catalog import load_catalog


def catalog_names(device_name: str) -> list[str]:
    """Names in the catalog that a device may have: one GPU comes with several sizes of memory and on several machines.

    Args:
        device_name: as `nvidia-smi` and PyTorch give it, such as "NVIDIA H100 80GB HBM3".
    """
    words = set(device_name.lower().replace("-", " ").split())
    gpus = load_catalog().gpus.values()
    return [gpu.name for gpu in gpus if set(gpu.device_name.lower().split()) <= words]
